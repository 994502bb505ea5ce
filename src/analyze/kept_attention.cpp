#include "analyze/kept_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "holdfast/error.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {

namespace {

// Σ A, Σ A v and Σ A ‖vW‖₁ over some slots.
struct Sums {
    double mass = 0, norms = 0;
    std::vector<double> output;

    explicit Sums(const HeadQuery& query)
        : output(query.values == nullptr ? 0 : std::size_t(query.head_dim)) {}

    void add(const HeadQuery& query, std::size_t slot) {
        const double weight = double(query.weights[slot]);
        mass += weight;
        if (query.values == nullptr) return;
        norms += weight * double(query.value_norms[slot]);
        const float* value = query.values + slot * output.size();
        for (std::size_t i = 0; i < output.size(); ++i) output[i] += weight * double(value[i]);
    }
    void add(const Sums& other) {
        mass += other.mass;
        norms += other.norms;
        for (std::size_t i = 0; i < output.size(); ++i) output[i] += other.output[i];
    }
};

// ‖x W‖₁ with the head's slice W of the output projection.
double projected_norm(const HeadQuery& query, const std::vector<double>& x) {
    const PackedMatrix& output = *query.output;
    const std::size_t depth = std::size_t(query.head_dim);
    double norm = 0;
    for (int p = 0; p < output.panel_count(); ++p) {
        const float* panel = output.panel(p) + std::size_t(query.head) * depth * 32;
        double sums[32] = {};
        for (std::size_t i = 0; i < depth; ++i)
            for (int c = 0; c < 32; ++c) sums[c] += x[i] * double(panel[i * 32 + std::size_t(c)]);
        for (double sum : sums) norm += std::abs(sum);  // outputs that aren't there are 0
    }
    return norm;
}

}  // namespace

void kept_attention(const HeadQuery& query, std::span<const std::span<const std::uint32_t>> kept,
                    KeptAttention* results) {
    Sums context(query), rest(query);
    for (std::size_t slot = 0; slot < query.context; ++slot) context.add(query, slot);
    for (std::size_t slot = query.context; slot < query.weights.size(); ++slot) rest.add(query, slot);
    Sums all = context;
    all.add(rest);
    std::vector<double> output = all.output;
    for (double& x : output) x /= all.mass;
    const double norm = query.values == nullptr ? 0 : projected_norm(query, output);

    for (std::size_t s = 0; s < kept.size(); ++s) {
        Sums seen(query);
        for (std::uint32_t slot : kept[s]) seen.add(query, slot);
        KeptAttention& result = results[s];
        result.retained = context.mass > 0 ? seen.mass / context.mass : 1;
        seen.add(rest);
        result.mass = seen.mass / all.mass;
        if (query.values == nullptr) continue;
        result.norm = norm;
        if (seen.mass == 0) {  // all weight in float is on what was evicted: nothing is left of the output
            result.distance = norm;
            result.bound = all.norms / all.mass;
            continue;
        }
        std::vector<double> difference(output.size());
        for (std::size_t i = 0; i < output.size(); ++i)
            difference[i] = output[i] - seen.output[i] / seen.mass;
        result.distance = projected_norm(query, difference);
        result.bound = (all.norms - (2 - 1 / result.mass) * seen.norms) / all.mass;
    }
}

void analyze_kept_attention(const GgufModel& model, Compute& compute, const AnswerTrace& trace,
                            std::span<const RaggedCache* const> kept, bool outputs,
                            const std::function<void(int, std::span<const KeptAttention>)>& visit) {
    const HyperParameters& p = model.parameters();
    const std::size_t first = trace.first_recorded(), steps = trace.steps() - first, sets = kept.size(),
                      heads = std::size_t(p.heads), depth = std::size_t(p.head_dim);
    if (steps == 0) return;
    const std::size_t slots = trace.slot(trace.steps() - 1) + 1, pages = pages_for(slots);
    ExpandedLayer weights;
    std::vector<float> values,
        norms;  // [kv_heads, slots of whole pages, head_dim], [heads, slots of whole pages]
    std::vector<KeptAttention> results(sets * steps * heads);
    for (int layer = 0; layer < p.layers; ++layer) {
        if (p.slides(layer)) continue;  // nothing is evicted there
        if (outputs) {
            weights.expand_output(model, layer, compute);
            values.resize(std::size_t(p.kv_heads) * pages * page_tokens * depth);
            norms.resize(heads * pages * page_tokens);
            compute.parallel(int(pages) * p.kv_heads, [&](int task, int) {
                const int kv_head = task / int(pages);
                const std::size_t page = std::size_t(task) % pages;
                const fp16_t* entries = trace.cache().pages(layer, kv_head)[page];
                const int tokens = int(std::min(slots - page * page_tokens, std::size_t(page_tokens)));
                const fp16_t* from = page_values(entries, p.head_dim);
                float* to = values.data() + std::size_t(task) * page_tokens * depth;
                for (std::size_t i = 0; i < std::size_t(tokens) * depth; ++i) to[i] = fp16_to_fp32(from[i]);
                std::vector<float> workspace(page_tokens * depth);
                for (int head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head)
                    projected_value_norms(entries, tokens, p.head_dim, weights.output, head, 1,
                                          norms.data() + (std::size_t(head) * pages + page) * page_tokens,
                                          workspace.data());
            });
        }
        compute.parallel(int(steps) * p.kv_heads, [&](int task, int) {
            const int kv_head = task % p.kv_heads;
            const std::size_t step = std::size_t(task / p.kv_heads);
            std::vector<std::span<const std::uint32_t>> of_head;
            for (const RaggedCache* cache : kept) of_head.push_back(cache->positions(layer, kv_head));
            const std::vector<float> attention =
                attention_weights(model, trace, first + step, layer, kv_head);
            const std::size_t seen = attention.size() / std::size_t(p.group());
            std::vector<KeptAttention> of_query(sets);
            for (int g = 0; g < p.group(); ++g) {
                HeadQuery query;
                query.weights = {attention.data() + std::size_t(g) * seen, seen};
                query.context = trace.context_tokens();
                query.head = kv_head * p.group() + g;
                query.head_dim = p.head_dim;
                if (outputs) {
                    query.values = values.data() + std::size_t(kv_head) * pages * page_tokens * depth;
                    query.value_norms = norms.data() + std::size_t(query.head) * pages * page_tokens;
                    query.output = &weights.output;
                }
                kept_attention(query, of_head, of_query.data());
                for (std::size_t s = 0; s < sets; ++s)
                    results[(s * steps + step) * heads + std::size_t(query.head)] = of_query[s];
            }
        });
        for (std::size_t i = 0; i < results.size(); ++i)
            if (!(results[i].distance <= results[i].bound + 1e-5 * (results[i].bound + results[i].norm)))
                throw Error(fmt::format(
                    "layer {}, head {}, step {}: the perturbation {} exceeds its bound {}; this is an error "
                    "of "
                    "holdfast, please report it",
                    layer, i % heads, first + i / heads % steps, results[i].distance, results[i].bound));
        visit(layer, results);
    }
}

}  // namespace holdfast
