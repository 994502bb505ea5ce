#include "engine/memory_plan.hpp"

#include <algorithm>

#include "holdfast/error.hpp"
#include "cache/ragged_cache.hpp"
#include "engine/cache_folder.hpp"
#include "engine/gram_store.hpp"
#include "engine/hidden_states.hpp"
#include "evict/compression.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

LayerShape layer_shape(const HyperParameters& p, std::uint32_t tokens) {
    LayerShape shape;
    shape.layers = p.global_layers();
    shape.kv_heads = p.kv_heads;
    shape.group = p.group();
    shape.head_dim = p.head_dim;
    shape.tokens = tokens;
    shape.scale = p.attention_scale;
    shape.soft_cap = p.attention_soft_cap;
    return shape;
}

MemoryPlan plan_memory(const GgufModel& model, std::uint32_t tokens,
                       std::span<const CompressionRequest> requests, std::uint32_t chunk, int threads) {
    const HyperParameters& p = model.parameters();
    const std::size_t sliding_heads = std::size_t(p.layers - p.global_layers()) * std::size_t(p.kv_heads);
    const std::size_t entry = RaggedCache::entry_bytes(p.head_dim);
    MemoryPlan plan;
    plan.weights = model.mapped_bytes();
    plan.quantized = model.quantized_bytes();
    plan.hidden = HiddenStates::bytes_for(tokens, p.hidden);
    plan.layer_kv = pages_for(tokens) * std::size_t(p.kv_heads) * page_bytes(p.head_dim);
    const std::size_t together = std::min(chunk, tokens);
    plan.layer_work = LayerGraph::bytes_for(model, int(together), threads) +
                      std::size_t(together) * std::size_t(p.hidden) * sizeof(float);
    plan.kv_sliding = sliding_heads * std::min(tokens, p.sliding_window) * entry;
    plan.kv_full = full_cache_bytes(p, tokens);
    std::size_t queries = 0, grams = 0;
    bool asks_output = false;  // for a layer's output projection
    const LayerShape shape = layer_shape(p, tokens);
    for (const auto& [method, budget] : requests) {
        plan.kv_kept += Compression::kept_entries(method, budget, shape) * entry + plan.kv_sliding;
        plan.layer_work += Compression::bytes_for(method, budget, shape, threads);
        if (method.keeps_all()) continue;
        queries = std::max(queries, together + method.settings().window);
        asks_output |= !method.needs_grams() || !GramStore::has_file(model, cache_folder());
        if (method.needs_grams()) grams = GramStore::bytes_for(p);
    }
    plan.layer_weights = ExpandedLayer::bytes_for(model, threads, asks_output);
    plan.layer_work += grams + queries * std::size_t(p.heads) * std::size_t(p.head_dim) * sizeof(float);
    return plan;
}

std::size_t full_cache_bytes(const HyperParameters& p, std::uint32_t tokens) {
    const auto global = std::size_t(p.global_layers()), sliding = std::size_t(p.layers) - global;
    return (global * tokens + sliding * std::min(tokens, p.sliding_window)) * std::size_t(p.kv_heads) *
           RaggedCache::entry_bytes(p.head_dim);
}

void check_fits(const MemoryPlan& plan, std::size_t available) {
    if (plan.peak() <= available) return;
    const auto mib = [](std::size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; };
    const std::pair<std::size_t, const char*> parts[] = {
        {plan.kv_kept, "the kept cache; a smaller --budget shrinks it"},
        {plan.hidden, "the context's hidden states; a shorter document shrinks them"},
        {plan.layer_scratch(), "one layer's scratch; a shorter document shrinks it"},
    };
    const auto& largest = *std::max_element(std::begin(parts), std::end(parts));
    throw Error("reading this takes " + mib(plan.peak()) + " of memory, and " + mib(available) +
                " are free; the largest part, " + mib(largest.first) + ", is " + largest.second);
}

}  // namespace holdfast
