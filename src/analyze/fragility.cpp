#include "analyze/fragility.hpp"

#include <algorithm>
#include <numeric>

namespace holdfast {

namespace {

constexpr std::size_t tokens_shown = 8;

// Adds what a step's evicted tokens have of the attention on the context to `mass` [context tokens], in the
// query heads of one KV head from `begin` up to `end`.
void add_evicted(const GgufModel& model, const AnswerTrace& trace, const RaggedCache& kept, std::size_t step,
                 int layer, int kv_head, int begin, int end, std::vector<double>& mass) {
    const std::vector<float> weights = attention_weights(model, trace, step, layer, kv_head);
    const std::size_t slots = trace.slot(step) + 1, context = trace.context_tokens();
    std::vector<bool> is_kept(context);
    for (std::uint32_t position : kept.positions(layer, kv_head)) is_kept[position] = true;
    for (int g = begin; g < end; ++g) {
        const float* row = weights.data() + std::size_t(g) * slots;
        const double all = std::accumulate(row, row + context, 0.0);
        if (all == 0) continue;
        for (std::size_t j = 0; j < context; ++j)
            if (!is_kept[j]) mass[j] += double(row[j]) / all;
    }
}

std::vector<EvictedToken> largest(const std::vector<double>& mass, double divisor) {
    std::vector<std::uint32_t> order(mass.size());
    std::iota(order.begin(), order.end(), 0u);
    const std::size_t shown = std::min(tokens_shown, order.size());
    std::partial_sort(
        order.begin(), order.begin() + std::ptrdiff_t(shown), order.end(),
        [&](std::uint32_t a, std::uint32_t b) { return mass[a] > mass[b] || (mass[a] == mass[b] && a < b); });
    std::vector<EvictedToken> tokens;
    for (std::size_t i = 0; i < shown && mass[order[i]] > 0; ++i)
        tokens.push_back({order[i], mass[order[i]] / divisor});
    return tokens;
}

}  // namespace

FragilityAnalysis analyze_fragility(const GgufModel& model, Compute& compute, DecoderGraph& decoder,
                                    const AnswerSetting& setting, double threshold) {
    const HyperParameters& p = model.parameters();
    const std::size_t heads = std::size_t(p.heads), sets = setting.kept.size(),
                      all = std::size_t(p.layers) * heads;
    const std::vector<int> layers = evicting_layers(p);
    const double count = double(layers.size() * heads);
    FragilityAnalysis analysis;
    analysis.kept.resize(sets);
    std::vector<std::vector<std::vector<float>>> retained(sets);  // [sets][layers, heads][steps]
    for (auto& of_set : retained) of_set.resize(all);

    analysis.answer = trace_answer(model, decoder, setting, [&](const AnswerTrace& trace) {
        const std::size_t first = trace.first_recorded(), steps = trace.steps() - first;
        for (Fragility& kept : analysis.kept) {
            kept.mean_by_step.resize(trace.steps(), 0);
            kept.least_by_step.resize(trace.steps(), 1);
        }
        analyze_kept_attention(
            model, compute, trace, setting.kept, false,
            [&](int layer, std::span<const KeptAttention> values) {
                for (std::size_t s = 0; s < sets; ++s) {
                    Fragility& kept = analysis.kept[s];
                    for (std::size_t i = 0; i < steps * heads; ++i) {
                        const double share = values[s * steps * heads + i].retained;
                        const std::size_t step = first + i / heads, head = i % heads;
                        retained[s][std::size_t(layer) * heads + head].push_back(float(share));
                        kept.mean_by_step[step] += share / count;
                        kept.least_by_step[step] = std::min(kept.least_by_step[step], share);
                        if (share >= kept.worst_head.retained) continue;
                        kept.worst_head = {int(step), layer, int(head), share, {}};
                    }
                }
            });
        // Their queries are gone with the next block.
        for (std::size_t s = 0; s < sets; ++s) {
            Fragility& kept = analysis.kept[s];
            WorstPlace& one = kept.worst_head;
            std::vector<double> mass(trace.context_tokens());
            if (one.layer >= 0 && std::size_t(one.step) >= first) {
                const int group_head = one.head % p.group();
                add_evicted(model, trace, *setting.kept[s], std::size_t(one.step), one.layer,
                            one.head / p.group(), group_head, group_head + 1, mass);
                one.evicted = largest(mass, 1);
            }
            const auto least =
                std::min_element(kept.mean_by_step.begin() + std::ptrdiff_t(first), kept.mean_by_step.end());
            if (*least < kept.worst_step.retained) {
                kept.worst_step = {int(least - kept.mean_by_step.begin()), -1, -1, *least, {}};
                std::fill(mass.begin(), mass.end(), 0);
                for (int layer : layers)
                    for (int h = 0; h < p.kv_heads; ++h)
                        add_evicted(model, trace, *setting.kept[s], std::size_t(kept.worst_step.step), layer,
                                    h, 0, p.group(), mass);
                kept.worst_step.evicted = largest(mass, count);
            }
        }
    });

    for (std::size_t s = 0; s < sets; ++s) {
        Fragility& kept = analysis.kept[s];
        kept.heads.assign(all, {1, 1, 0, 0});
        for (std::size_t i = 0; i < all; ++i) {
            const std::vector<float>& course = retained[s][i];
            if (course.empty()) continue;  // a layer that evicts nothing
            HeadFragility& head = kept.heads[i];
            head.mean = std::accumulate(course.begin(), course.end(), 0.0) / double(course.size());
            const auto least = std::min_element(course.begin(), course.end());
            head.least = double(*least);
            head.worst_step = int(least - course.begin());
            head.collapses = int(std::count_if(course.begin(), course.end(), [&](float share) {
                return double(share) < threshold * head.mean;
            }));
            kept.mean += head.mean / count;
            kept.mean_least += head.least / count;
            kept.collapses += head.collapses;
            kept.most_collapses = std::max(kept.most_collapses, head.collapses);
        }
    }
    return analysis;
}

}  // namespace holdfast
