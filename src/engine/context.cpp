#include "engine/context.hpp"

#include <algorithm>
#include <numeric>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/memory.hpp"
#include "evict/cascade.hpp"
#include "evict/observer.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

namespace {

// A context no longer than the window and this many tokens leaves nothing worth choosing.
constexpr std::uint32_t too_short_to_choose = 8;

// How a budget applies to a context: keep all, keep each head's last tokens, or choose.
struct Decision {
    enum { keep_all, keep_last, choose } kind = keep_all;
    std::uint32_t last = 0;      // keep_last: tokens per head
    double tokens_per_head = 0;  // choose
    std::size_t capacity = 0;    // choose: entries of the past, all heads together
    std::string note;
};

Decision decide(const ReadSettings& settings, std::uint32_t n, std::size_t heads) {
    const std::uint32_t window = settings.defensive.window;
    const std::size_t entries = settings.budget.entries(n, heads);
    Decision decision;
    decision.tokens_per_head = settings.budget.tokens_per_head(n);
    if (entries >= std::size_t(n) * heads) return decision;
    if (n <= window + too_short_to_choose) {
        decision.note = "kept whole: the context is no longer than the observation window of " +
                        std::to_string(window) + " tokens and " + std::to_string(too_short_to_choose) +
                        " more";
    } else if (entries < heads * window) {
        decision.kind = Decision::keep_last;
        decision.last = std::max<std::uint32_t>(1, std::uint32_t(entries / heads));
        decision.note = "the budget is smaller than the observation window of " + std::to_string(window) +
                        " tokens: each head keeps its last " + std::to_string(decision.last);
    } else {
        decision.kind = Decision::choose;
        decision.capacity = entries - heads * window;
    }
    return decision;
}

// Evicts layer by layer, as the prefill finishes them.
class Compressor {
  public:
    Compressor(const Model& model, Compute& compute, RaggedCache& cache, const ReadSettings& settings,
               std::uint32_t n)
        : parameters_(model.parameters()),
          cache_(cache),
          settings_(settings.defensive),
          decision_(decide(settings, n, std::size_t(parameters_.layers) * std::size_t(parameters_.kv_heads))),
          observer_(
              settings.defensive,
              [&compute](int count, const std::function<void(int, int)>& task) {
                  compute.parallel(count, task);
              },
              compute.threads()),
          cascade_(std::uint32_t(parameters_.kv_heads), decision_.capacity) {
        if (decision_.kind != Decision::choose) return;
        observed_.window = settings_.window;
        observed_.first_position = n - settings_.window;
        observed_.queries.resize(std::size_t(parameters_.heads) * settings_.window *
                                 std::size_t(parameters_.head_dim));
    }

    const std::string& note() const { return decision_.note; }
    WindowQueries* observed() { return decision_.kind == Decision::choose ? &observed_ : nullptr; }

    void finish_layer(int layer, const PackedMatrix& output) {
        if (decision_.kind == Decision::keep_last) keep_last(layer);
        if (decision_.kind == Decision::choose) choose(layer, output);
    }

  private:
    void keep_last(int layer) {
        for (int h = 0; h < parameters_.kv_heads; ++h) {
            std::vector<std::uint32_t> slots(decision_.last);
            std::iota(slots.begin(), slots.end(), cache_.length(layer, h) - decision_.last);
            cache_.retain(layer, h, slots);
        }
    }

    void choose(int layer, const PackedMatrix& output) {
        LayerView view;
        view.kv_heads = parameters_.kv_heads;
        view.group = parameters_.group();
        view.head_dim = parameters_.head_dim;
        view.scale = parameters_.attention_scale();
        view.tokens = cache_.length(layer, 0);
        for (int h = 0; h < parameters_.kv_heads; ++h) view.pages.push_back(cache_.pages(layer, h));
        view.queries = observed_.queries.data();
        view.output = output;
        const DefensiveScores scores =
            defensive_scores(observer_.observe(view), settings_, decision_.tokens_per_head);
        cascade_.add_layer(scores.past,
                           [&](std::uint32_t l, std::uint32_t h, std::span<const std::uint32_t> kept) {
                               // The window follows the past in every head, and stays.
                               std::vector<std::uint32_t> slots(kept.begin(), kept.end());
                               const std::uint32_t length = cache_.length(int(l), int(h));
                               for (std::uint32_t slot = length - settings_.window; slot < length; ++slot)
                                   slots.push_back(slot);
                               cache_.retain(int(l), int(h), slots);
                           });
    }

    const HyperParameters& parameters_;
    RaggedCache& cache_;
    DefensiveSettings settings_;
    Decision decision_;
    WindowQueries observed_;
    Observer observer_;
    Cascade cascade_;
};

void summarize(const RaggedCache& cache, ReadReport& report) {
    report.kept_least = cache.length(0, 0);
    for (int l = 0; l < cache.layers(); ++l)
        for (int h = 0; h < cache.kv_heads(); ++h) {
            report.kept_least = std::min(report.kept_least, cache.length(l, h));
            report.kept_most = std::max(report.kept_most, cache.length(l, h));
        }
    report.kept_mean = double(cache.entries()) / double(cache.layers() * cache.kv_heads());
    report.kv_bytes = cache.bytes();
}

}  // namespace

Context read_context(const Model& model, Compute& compute, std::span<const int> tokens,
                     const ReadSettings& settings, const std::function<void(const ReadProgress&)>& progress) {
    const HyperParameters& p = model.parameters();
    const auto n = std::uint32_t(tokens.size());
    if (n == 0) throw Error("there is nothing to read: the context is empty", Error::Kind::usage);
    if (n > p.context_length)
        throw Error("the context has " + std::to_string(n) + " tokens, and the model reads at most " +
                        std::to_string(p.context_length) +
                        "; shorten it, or extend a model with rope scaling with -c",
                    Error::Kind::usage);

    ReadReport report;
    report.tokens = n;
    report.plan =
        plan_memory(model, n, settings.budget, settings.defensive, settings.chunk, compute.threads());
    check_fits(report.plan, available_memory());
    const std::size_t memory_before = anonymous_memory();
    std::size_t memory_most = memory_before;

    const Stopwatch watch;
    RaggedCache cache(std::make_shared<PagePool>(p.head_dim), p.layers, p.kv_heads);
    Compressor compressor(model, compute, cache, settings, n);
    LayerGraph graph(model, compute);
    ExpandedLayer weights;
    const Buffer hidden_buffer(std::size_t(n) * std::size_t(p.hidden) * sizeof(float));
    float* hidden = hidden_buffer.as<float>();
    compute.parallel(int(n), [&](int i, int) {
        model.embed(tokens[std::size_t(i)], hidden + std::size_t(i) * std::size_t(p.hidden));
    });

    // Chunks of equal length, so that none is too short to be worth a product.
    const std::uint32_t chunks = (n + settings.chunk - 1) / settings.chunk;
    for (int layer = 0; layer < p.layers; ++layer) {
        weights.expand(model, layer, compute);
        for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
            const auto begin = std::uint32_t(std::uint64_t(n) * chunk / chunks);
            const auto end = std::uint32_t(std::uint64_t(n) * (chunk + 1) / chunks);
            graph.run(weights, layer, hidden + std::size_t(begin) * std::size_t(p.hidden), int(end - begin),
                      begin, cache, compressor.observed());
            if (progress) progress({layer, p.layers, end, n, watch.seconds()});
        }
        const Stopwatch compression;
        compressor.finish_layer(layer, weights.output);
        report.compression_seconds += compression.seconds();
        // Pages that eviction freed are still the pool's: this is the most since the last layer.
        memory_most = std::max(memory_most, anonymous_memory());
    }
    cache.set_next_position(n);
    cache.defragment();
    report.prefill_seconds = watch.seconds() - report.compression_seconds;
    report.peak_bytes = memory_most - memory_before;
    report.note = compressor.note();
    summarize(cache, report);
    const float* last = hidden + std::size_t(n - 1) * std::size_t(p.hidden);
    return {std::move(cache), std::move(report), {last, last + p.hidden}};
}

}  // namespace holdfast
