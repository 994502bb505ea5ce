#include "analyze/perturbation.hpp"

#include <algorithm>
#include <cmath>

#include "holdfast/error.hpp"
#include "engine/session.hpp"

namespace holdfast {

namespace {

// Runs the model on every cache at once, step by step, so that no hidden state outlives its step.
void compare_hidden(const HyperParameters& p, DecoderGraph& decoder, const AnswerSetting& setting,
                    PerturbationAnalysis& analysis) {
    std::vector<RaggedCache> caches;
    caches.reserve(setting.kept.size() + 1);
    caches.emplace_back(setting.context);
    for (const RaggedCache* kept : setting.kept) caches.emplace_back(*kept);
    const std::size_t width = std::size_t(p.hidden), layers = std::size_t(p.layers);
    std::vector<float> full(layers * width), reduced(full.size());
    for (Perturbation& kept : analysis.kept) {
        kept.hidden.assign(layers, 0);
        kept.hidden_relative.assign(layers, 0);
    }
    std::span<const int> tokens = setting.question;
    const double steps = double(analysis.answer.size());
    for (const int& next : analysis.answer) {
        read_tokens(decoder, tokens, caches[0], p.context_length, {.hidden = full.data()});
        for (std::size_t s = 0; s < analysis.kept.size(); ++s) {
            read_tokens(decoder, tokens, caches[s + 1], p.context_length, {.hidden = reduced.data()});
            for (std::size_t l = 0; l < layers; ++l) {
                double distance = 0, norm = 0;
                for (std::size_t i = l * width; i < (l + 1) * width; ++i) {
                    distance += std::abs(double(full[i]) - double(reduced[i]));
                    norm += std::abs(double(full[i]));
                }
                analysis.kept[s].hidden[l] += distance / steps;
                analysis.kept[s].hidden_relative[l] += distance / norm / steps;
            }
        }
        tokens = {&next, 1};
    }
}

}  // namespace

double Perturbation::mean(double HeadPerturbation::*value) const {
    double sum = 0;
    int count = 0;
    for (const HeadPerturbation& head : heads) {
        if (head.mass == 0) continue;  // a layer that evicts nothing
        sum += head.*value;
        ++count;
    }
    return count == 0 ? 0 : sum / count;
}

std::vector<int> evicting_layers(const HyperParameters& parameters) {
    std::vector<int> layers;
    for (int l = 0; l < parameters.layers; ++l)
        if (!parameters.slides(l)) layers.push_back(l);
    return layers;
}

std::vector<int> trace_answer(const GgufModel& model, DecoderGraph& decoder, const AnswerSetting& setting,
                              const std::function<void(const AnswerTrace&)>& on_block) {
    constexpr int steps_of_block = 32;
    AnswerTrace trace(model, decoder, setting.context, setting.question, setting.ends_answer);
    while (int(trace.steps()) < setting.most_steps &&
           trace.advance(std::min(steps_of_block, setting.most_steps - int(trace.steps())))) {
        on_block(trace);
        if (setting.progress) setting.progress(int(trace.steps()));
    }
    if (trace.steps() == 0)
        throw Error("with the full cache the model gives no answer: there is nothing to analyze");
    return trace.tokens();
}

PerturbationAnalysis analyze_perturbation(const GgufModel& model, Compute& compute, DecoderGraph& decoder,
                                          const AnswerSetting& setting) {
    const HyperParameters& p = model.parameters();
    const std::size_t heads = std::size_t(p.heads), sets = setting.kept.size(),
                      all_heads = heads * evicting_layers(p).size();
    PerturbationAnalysis analysis;
    analysis.kept.resize(sets);
    for (Perturbation& kept : analysis.kept) kept.heads.resize(std::size_t(p.layers) * heads);
    analysis.answer = trace_answer(model, decoder, setting, [&](const AnswerTrace& trace) {
        const std::size_t first = trace.first_recorded(), steps = trace.steps() - first;
        for (Perturbation& kept : analysis.kept) kept.relative_by_step.resize(trace.steps());
        analyze_kept_attention(
            model, compute, trace, setting.kept, true, [&](int layer, std::span<const KeptAttention> values) {
                for (std::size_t s = 0; s < sets; ++s)
                    for (std::size_t i = 0; i < steps * heads; ++i) {
                        const KeptAttention& value = values[s * steps * heads + i];
                        const double relative = value.norm > 0 ? value.distance / value.norm : 0;
                        HeadPerturbation& head =
                            analysis.kept[s].heads[std::size_t(layer) * heads + i % heads];
                        head.distance += value.distance;
                        head.relative += relative;
                        head.bound += value.bound;
                        head.mass += value.mass;
                        head.majority += value.mass > 0.5;
                        analysis.kept[s].relative_by_step[first + i / heads] += relative / double(all_heads);
                    }
            });
    });
    for (Perturbation& kept : analysis.kept)
        for (HeadPerturbation& head : kept.heads)
            for (double* sum : {&head.distance, &head.relative, &head.bound, &head.mass, &head.majority})
                *sum /= double(analysis.answer.size());
    compare_hidden(p, decoder, setting, analysis);
    return analysis;
}

}  // namespace holdfast
