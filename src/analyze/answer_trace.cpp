#include "analyze/answer_trace.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/attention.hpp"

namespace holdfast {

AnswerTrace trace_answer(const Model& model, DecoderGraph& decoder, const RaggedCache& context,
                         std::span<const int> tokens, int most, const std::function<bool(int)>& stop) {
    const HyperParameters& p = model.parameters();
    AnswerTrace trace{context, context.next_position(), 0, {}, {}};
    if (tokens.size() > 1) decoder.run(tokens.first(tokens.size() - 1), trace.cache);
    trace.first_slot = trace.cache.next_position();
    int token = tokens.back();
    while (int(trace.tokens.size()) < most && trace.cache.next_position() < p.context_length) {
        std::vector<float> queries(std::size_t(p.layers) * std::size_t(p.heads) * std::size_t(p.head_dim));
        const std::span<const float> logits = decoder.run({&token, 1}, trace.cache, queries.data());
        token = int(std::max_element(logits.begin(), logits.end()) - logits.begin());
        if (stop(token)) break;
        trace.tokens.push_back(token);
        trace.queries.push_back(std::move(queries));
    }
    return trace;
}

namespace {

// The scaled queries of a KV head's group, of one step.
std::vector<float> group_queries(const Model& model, const AnswerTrace& trace, std::size_t step, int layer,
                                 int kv_head) {
    const HyperParameters& p = model.parameters();
    const std::size_t floats = std::size_t(p.group()) * std::size_t(p.head_dim);
    const float* from = trace.query(model, step, layer) + std::size_t(kv_head) * floats;
    std::vector<float> queries(from, from + floats);
    for (float& x : queries) x *= p.attention_scale;
    return queries;
}

// Attention outputs [steps, heads · head_dim] of one KV head's group; visible(step): slots that it sees.
void attend_steps(const Model& model, const AnswerTrace& trace, const RaggedCache& cache, int layer,
                  int kv_head, const std::function<std::uint32_t(std::size_t)>& visible,
                  std::vector<float>& outputs) {
    const HyperParameters& p = model.parameters();
    const std::size_t d = std::size_t(p.head_dim), padded = std::size_t(padded_head_dim(p.head_dim));
    const int rows = p.group();
    std::vector<float> partial(std::size_t(rows) * (padded + 2)),
        workspace(attention_workspace(rows, p.head_dim));
    const AttentionPartial result{partial.data(), partial.data() + std::size_t(rows) * padded,
                                  partial.data() + std::size_t(rows) * (padded + 1)};
    for (std::size_t step = 0; step < trace.steps(); ++step) {
        const std::vector<float> queries = group_queries(model, trace, step, layer, kv_head);
        const std::vector<std::uint32_t> seen(std::size_t(rows), visible(step));
        AttentionTask task;
        task.rows = rows;
        task.head_dim = p.head_dim;
        task.query = queries.data();
        task.visible = seen.data();
        task.pages = cache.pages(layer, kv_head);
        task.slot_end = seen[0];
        task.soft_cap = p.attention_soft_cap;
        attend(task, result, workspace.data());
        for (int g = 0; g < rows; ++g)
            combine_partials(
                {&result, 1}, g, p.head_dim,
                outputs.data() + step * std::size_t(p.heads) * d + std::size_t(kv_head * rows + g) * d);
    }
}

}  // namespace

std::vector<float> attention_weights(const Model& model, const AnswerTrace& trace, std::size_t step,
                                     int layer, int kv_head) {
    const HyperParameters& p = model.parameters();
    const std::uint32_t slots = trace.slot(step) + 1;
    const std::size_t stride = pages_for(slots) * page_tokens;
    const std::vector<float> queries = group_queries(model, trace, step, layer, kv_head);
    std::vector<float> scores(std::size_t(p.group()) * stride),
        workspace(attention_workspace(p.group(), p.head_dim)), weights;
    AttentionTask task;
    task.rows = p.group();
    task.head_dim = p.head_dim;
    task.query = queries.data();
    task.pages = trace.cache.pages(layer, kv_head);
    task.slot_end = slots;
    task.soft_cap = p.attention_soft_cap;
    score_slots(task, scores.data(), stride, workspace.data());
    for (int g = 0; g < p.group(); ++g) {
        float* row = scores.data() + std::size_t(g) * stride;
        softmax_row(row, slots, slots);
        weights.insert(weights.end(), row, row + slots);
    }
    return weights;
}

std::vector<double> output_perturbation(const Model& model, Compute& compute, const AnswerTrace& trace,
                                        const RaggedCache& kept) {
    const HyperParameters& p = model.parameters();
    const std::size_t width = std::size_t(p.heads) * std::size_t(p.head_dim), hidden = std::size_t(p.hidden);
    const std::uint32_t end = trace.slot(trace.steps() - 1) + 1;
    RaggedCache compressed(trace.cache);
    ExpandedLayer weights;
    std::vector<double> perturbation;
    for (int l = 0; l < p.layers; ++l) {
        if (p.slides(l)) {  // nothing is evicted there
            perturbation.push_back(0);
            continue;
        }
        std::vector<float> full(trace.steps() * width), reduced(full.size());
        std::vector<std::vector<std::uint32_t>> slots;
        for (int h = 0; h < p.kv_heads; ++h) {
            const auto positions = kept.positions(l, h);
            auto& list = slots.emplace_back();
            for (std::uint32_t position : positions)
                if (position < trace.context_tokens) list.push_back(position);
            const auto context = std::uint32_t(list.size());
            for (std::uint32_t slot = trace.context_tokens; slot < end; ++slot) list.push_back(slot);
            compressed.retain(l, h, list);
            slots.back().resize(context);
        }
        compute.parallel(p.kv_heads, [&](int h, int) {
            attend_steps(
                model, trace, trace.cache, l, h, [&](std::size_t step) { return trace.slot(step) + 1; },
                full);
            attend_steps(
                model, trace, compressed, l, h,
                [&](std::size_t step) {
                    return std::uint32_t(slots[std::size_t(h)].size()) + trace.slot(step) + 1 -
                           trace.context_tokens;
                },
                reduced);
        });
        for (std::size_t i = 0; i < full.size(); ++i) full[i] -= reduced[i];
        weights.expand(model, l, compute);
        std::vector<float> projected(trace.steps() * hidden);
        matmul(int(trace.steps()), full.data(), width, weights.output, 0, weights.output.panel_count(),
               nullptr, projected.data(), hidden);
        double sum = 0;
        for (float x : projected) sum += std::abs(double(x) * double(p.residual_scale));
        perturbation.push_back(sum / double(trace.steps()));
    }
    return perturbation;
}

}  // namespace holdfast
