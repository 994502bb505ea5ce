#include "engine/context.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "holdfast/error.hpp"
#include "base/memory.hpp"
#include "engine/compressor.hpp"
#include "engine/hidden_states.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

ReadReport report_of(const HyperParameters& p, const RaggedCache& cache) {
    ReadReport report;
    report.tokens = cache.next_position();
    report.kept_least = report.tokens;
    std::size_t total = 0;
    for (int l = 0; l < cache.layers(); ++l)
        for (int h = 0; h < cache.kv_heads() && !p.slides(l); ++h) {
            report.kept_least = std::min(report.kept_least, cache.length(l, h));
            report.kept_most = std::max(report.kept_most, cache.length(l, h));
            total += cache.length(l, h);
        }
    report.sliding_layers = p.layers - p.global_layers();
    report.kept_mean = double(total) / std::max(1, p.global_layers() * cache.kv_heads());
    report.kv_bytes = cache.bytes();
    report.kv_bytes_full = full_cache_bytes(p, report.tokens);
    return report;
}

std::vector<ReadContext> read_contexts(const GgufModel& model, Compute& compute, std::span<const int> tokens,
                                       std::span<const CompressionRequest> requests,
                                       const std::function<void(const ReadProgress&)>& progress,
                                       std::uint32_t chunk) {
    const HyperParameters& p = model.parameters();
    const auto n = std::uint32_t(tokens.size());
    if (n == 0) throw Error("there is nothing to read: the context is empty", Error::Kind::usage);
    if (n > p.context_length)
        throw Error("the context has " + std::to_string(n) + " tokens, and the model reads at most " +
                        std::to_string(p.context_length) +
                        "; shorten it, or extend a model with rope scaling with -c",
                    Error::Kind::usage);

    const MemoryPlan plan = plan_memory(model, n, requests, chunk, compute.threads());
    check_fits(plan, available_memory());
    const std::size_t memory_before = anonymous_memory();
    std::size_t memory_most = memory_before;

    const Stopwatch watch;
    const auto pool = std::make_shared<PagePool>(p.head_dim);
    RaggedCache scratch(pool, p.layers, p.kv_heads);
    std::vector<RaggedCache> caches;
    caches.reserve(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) caches.emplace_back(pool, p.layers, p.kv_heads);
    Compressor compressor(model, compute, scratch, requests, caches, n, chunk);
    LayerGraph graph(model, compute);
    ExpandedLayer weights;
    HiddenStates hidden(n, p.hidden);
    const auto width = std::size_t(p.hidden);
    std::vector<float> states(std::min(n, chunk) * width);  // of a chunk

    // Chunks of equal length, so that none is too short to be worth a product.
    const std::uint32_t chunks = (n + chunk - 1) / chunk;
    for (int layer = 0; layer < p.layers; ++layer) {
        weights.expand(model, layer, compute);
        compressor.begin_layer(layer);
        for (std::uint32_t c = 0; c < chunks; ++c) {
            const auto begin = std::uint32_t(std::uint64_t(n) * c / chunks);
            const auto end = std::uint32_t(std::uint64_t(n) * (c + 1) / chunks);
            const int count = int(end - begin);
            compute.parallel(count, [&](int i, int) {
                float* state = states.data() + std::size_t(i) * width;
                if (layer == 0)
                    model.embed(tokens[begin + std::uint32_t(i)], state);
                else
                    hidden.load(begin + std::uint32_t(i), state);
            });
            // Behind the last layer, only the last token's state is of use.
            const bool last = layer + 1 == p.layers;
            graph.run(weights, layer, states.data(), count, begin, scratch, compressor.chunk_queries(),
                      last && end < n ? LayerGraph::Result::cache : LayerGraph::Result::cache_and_hidden);
            if (!last)
                compute.parallel(count, [&](int i, int) {
                    hidden.store(begin + std::uint32_t(i), states.data() + std::size_t(i) * width);
                });
            compressor.finish_chunk(begin, end);
            if (progress) progress({layer, p.layers, end, n, watch.seconds()});
        }
        compressor.finish_layer([&] { return weights.expand_output(model, layer, compute); });
        // Pages that eviction freed are still the pool's: this is the most since the last layer.
        memory_most = std::max(memory_most, anonymous_memory());
    }
    const double prefill_seconds = watch.seconds() - compressor.spent_seconds();

    std::vector<ReadContext> contexts;
    const std::size_t last_chunk = n - std::size_t(n) * (chunks - 1) / chunks;
    const float* last = states.data() + (last_chunk - 1) * width;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        caches[i].set_next_position(n);
        caches[i].defragment();
        ReadReport report = report_of(p, caches[i]);
        report.planned_peak_bytes = plan.peak();
        report.prefill_seconds = prefill_seconds;
        report.compression_seconds = compressor.seconds(i);
        report.peak_bytes = memory_most - memory_before;
        report.note = compressor.note(i);
        contexts.push_back({std::move(caches[i]), std::move(report), {last, last + p.hidden}});
    }
    return contexts;
}

ReadContext read_context(const GgufModel& model, Compute& compute, std::span<const int> tokens,
                         const ReadSettings& settings,
                         const std::function<void(const ReadProgress&)>& progress) {
    const CompressionRequest request{settings.method, settings.budget};
    return std::move(read_contexts(model, compute, tokens, {&request, 1}, progress, settings.chunk).front());
}

}  // namespace holdfast
