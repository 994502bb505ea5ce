#include "engine/context.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/memory.hpp"
#include "engine/cache_folder.hpp"
#include "engine/gram_store.hpp"
#include "engine/head_profile.hpp"
#include "evict/compression.hpp"
#include "evict/observer.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

namespace {

// Evicts layer by layer, as the prefill goes through them.
class Compressor {
  public:
    Compressor(const Model& model, Compute& compute, RaggedCache& cache, const ReadSettings& settings,
               std::uint32_t n)
        : parameters_(model.parameters()),
          cache_(cache),
          observer_([&compute](int count,
                               const std::function<void(int, int)>& task) { compute.parallel(count, task); },
                    compute.threads()) {
        layer_.shape = layer_shape(parameters_, n);
        for (int l = 0; l < parameters_.layers; ++l) {
            rotations_.push_back(measure_rotation(model, compute, l));
            if (!parameters_.slides(l)) global_layers_.push_back(l);
        }
        std::vector<double> heads;
        if (settings.method.needs_profile()) {
            const HeadProfile profile = load_head_profile(settings.method.settings().profile, model);
            for (int l : global_layers_) {
                const auto first = profile.importance.begin() + std::ptrdiff_t(l) * parameters_.kv_heads;
                heads.insert(heads.end(), first, first + parameters_.kv_heads);
            }
        }
        compression_.emplace(settings.method, settings.budget, layer_.shape, heads);
        if (settings.method.critical() != Critical::none &&
            settings.method.settings().vnorm == ValueNorm::gram)
            grams_.emplace(model, compute, cache_folder());
        layer_.window = compression_->window_queries();
        window_queries_.resize(layer_.window * row());
        if (layer_.window > 0 || compression_->watches_queries())
            chunk_queries_.resize(std::min(n, settings.chunk) * row());
    }

    const std::string& note() const { return compression_->note(); }
    // Where a chunk's queries go; null if nobody looks at them.
    float* chunk_queries() { return chunk_queries_.empty() ? nullptr : chunk_queries_.data(); }

    void begin_layer(int layer) {
        model_layer_ = layer;
        if (parameters_.slides(layer)) return;
        layer_.shape.layer = int(std::ranges::find(global_layers_, layer) - global_layers_.begin());
        layer_.shape.rotation = &rotations_[std::size_t(layer)];
        compression_->begin_layer(layer_.shape);
    }

    // A chunk of the layer was read: its keys and values are in the cache, its queries in chunk_queries().
    void finish_chunk(std::uint32_t begin, std::uint32_t end) {
        if (parameters_.slides(model_layer_)) return;
        const std::uint32_t n = layer_.shape.tokens, first = n - layer_.window;
        const std::size_t d = std::size_t(parameters_.head_dim);
        for (std::uint32_t position = std::max(begin, first); position < end; ++position)
            for (std::size_t h = 0; h < std::size_t(parameters_.heads); ++h)
                std::copy_n(chunk_queries_.data() + (position - begin) * row() + h * d, d,
                            window_queries_.data() + (h * layer_.window + position - first) * d);
        if (!compression_->watches_queries()) return;
        show_layer({});
        compression_->watch(observer_, {begin, end - begin, chunk_queries_.data()});
    }

    void finish_layer(const PackedMatrix& output) {
        if (parameters_.slides(model_layer_)) return keep_window();
        show_layer(output);
        compression_->finish_layer(observer_, [&](int layer, int head, std::span<const std::uint32_t> kept) {
            cache_.retain(global_layers_[std::size_t(layer)], head, kept);
        });
    }

  private:
    std::size_t row() const { return std::size_t(parameters_.heads) * std::size_t(parameters_.head_dim); }

    // A sliding layer keeps what the next tokens see.
    void keep_window() {
        for (int h = 0; h < parameters_.kv_heads; ++h) {
            const std::uint32_t length = cache_.length(model_layer_, h);
            std::vector<std::uint32_t> slots(std::min(length, parameters_.sliding_window));
            std::iota(slots.begin(), slots.end(), length - std::uint32_t(slots.size()));
            cache_.retain(model_layer_, h, slots);
        }
    }

    void show_layer(const PackedMatrix& output) {
        layer_.pages.clear();
        for (int h = 0; h < parameters_.kv_heads; ++h) layer_.pages.push_back(cache_.pages(model_layer_, h));
        layer_.window_queries = window_queries_.data();
        layer_.output = output;
        if (grams_ && output.panels != nullptr) layer_.grams = grams_->layer(model_layer_, output);
        observer_.show(layer_);
    }

    const HyperParameters& parameters_;
    RaggedCache& cache_;
    std::vector<Rotation> rotations_;  // [layers]
    std::vector<int> global_layers_;   // the model's numbers of layers that eviction works on
    int model_layer_ = 0;
    Observer observer_;
    ObservedLayer layer_;
    std::optional<Compression> compression_;
    std::optional<GramStore> grams_;
    std::vector<float> chunk_queries_;   // [tokens, heads, head_dim]
    std::vector<float> window_queries_;  // [heads, window, head_dim]
};

void summarize(const HyperParameters& p, const RaggedCache& cache, ReadReport& report) {
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
    report.plan = plan_memory(model, n, settings.method, settings.budget, settings.chunk, compute.threads());
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
        compressor.begin_layer(layer);
        for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
            const auto begin = std::uint32_t(std::uint64_t(n) * chunk / chunks);
            const auto end = std::uint32_t(std::uint64_t(n) * (chunk + 1) / chunks);
            graph.run(weights, layer, hidden + std::size_t(begin) * std::size_t(p.hidden), int(end - begin),
                      begin, cache, compressor.chunk_queries());
            const Stopwatch watching;
            compressor.finish_chunk(begin, end);
            report.compression_seconds += watching.seconds();
            if (progress) progress({layer, p.layers, end, n, watch.seconds()});
        }
        const Stopwatch compression;
        compressor.finish_layer(weights.output);
        report.compression_seconds += compression.seconds();
        // Pages that eviction freed are still the pool's: this is the most since the last layer.
        memory_most = std::max(memory_most, anonymous_memory());
    }
    cache.set_next_position(n);
    cache.defragment();
    report.prefill_seconds = watch.seconds() - report.compression_seconds;
    report.peak_bytes = memory_most - memory_before;
    report.note = compressor.note();
    summarize(p, cache, report);
    const float* last = hidden + std::size_t(n - 1) * std::size_t(p.hidden);
    return {std::move(cache), std::move(report), {last, last + p.hidden}};
}

}  // namespace holdfast
