#include "engine/memory_plan.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "cache/ragged_cache.hpp"
#include "evict/observer.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

MemoryPlan plan_memory(const Model& model, std::uint32_t tokens, const Budget& budget,
                       const DefensiveSettings& settings, std::uint32_t chunk, int threads) {
    const HyperParameters& p = model.parameters();
    const std::size_t heads = std::size_t(p.layers) * std::size_t(p.kv_heads);
    const std::size_t entry = RaggedCache::entry_bytes(p.head_dim);
    MemoryPlan plan;
    plan.weights = model.mapped_bytes();
    plan.repacked = model.repacked_bytes();
    plan.hidden = std::size_t(tokens) * std::size_t(p.hidden) * sizeof(float);
    plan.layer_kv = pages_for(tokens) * std::size_t(p.kv_heads) * page_bytes(p.head_dim);
    plan.layer_weights = ExpandedLayer::bytes_for(model, threads);
    plan.layer_work =
        LayerGraph::bytes_for(model, int(std::min(chunk, tokens)), threads) +
        Observer::bytes_for(p.kv_heads, p.group(), p.head_dim, tokens, settings.window, threads);
    plan.kv_full = heads * tokens * entry;
    plan.kv_kept = budget.entries(tokens, heads) * entry;
    return plan;
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
