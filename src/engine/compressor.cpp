#include "engine/compressor.hpp"

#include <algorithm>
#include <numeric>

#include "base/clock.hpp"
#include "engine/cache_folder.hpp"
#include "engine/head_profile.hpp"
#include "engine/memory_plan.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

std::vector<int> global_layers(const HyperParameters& p) {
    std::vector<int> layers;
    for (int l = 0; l < p.layers; ++l)
        if (!p.slides(l)) layers.push_back(l);
    return layers;
}

Rotation measure_rotation(const GgufModel& model, Compute& compute, std::span<const int> layers) {
    const auto rotated = std::ranges::find_if(layers, [&](int l) { return model.parameters().rotates(l); });
    return rotated == layers.end() ? Rotation() : measure_rotation(model, compute, *rotated);
}

Compression make_compression(const GgufModel& model, const CompressionRequest& request,
                             const LayerShape& shape) {
    std::vector<double> heads;
    if (request.method.needs_profile()) {
        const HeadProfile profile = load_head_profile(request.method.settings().profile, model);
        for (int l : global_layers(model.parameters())) {
            const auto first = profile.importance.begin() + std::ptrdiff_t(l) * shape.kv_heads;
            heads.insert(heads.end(), first, first + shape.kv_heads);
        }
    }
    return {request.method, request.budget, shape, heads};
}

Compressor::Compressor(const GgufModel& model, Compute& compute, RaggedCache& scratch,
                       std::span<const CompressionRequest> requests, std::span<RaggedCache> caches,
                       std::uint32_t tokens, std::uint32_t chunk)
    : parameters_(model.parameters()),
      compute_(compute),
      scratch_(scratch),
      caches_(caches),
      seconds_(requests.size()),
      global_layers_(global_layers(parameters_)),
      observer_(
          [&compute](int count, const std::function<void(int, int)>& task) { compute.parallel(count, task); },
          compute.threads()) {
    layer_.shape = layer_shape(parameters_, tokens);
    rotation_ = measure_rotation(model, compute, global_layers_);
    for (const CompressionRequest& request : requests) {
        compressions_.push_back(make_compression(model, request, layer_.shape));
        layer_.window = std::max(layer_.window, compressions_.back().window_queries());
        watching_ |= compressions_.back().watches_queries();
        if (!grams_ && request.method.needs_grams()) grams_.emplace(model, compute, cache_folder());
    }
    window_queries_.resize(layer_.window * row());
    if (layer_.window > 0 || watching_) chunk_queries_.resize(std::min(tokens, chunk) * row());
}

void Compressor::begin_layer(int layer) {
    model_layer_ = layer;
    if (parameters_.slides(layer)) return;
    layer_.shape.layer = int(std::ranges::find(global_layers_, layer) - global_layers_.begin());
    layer_.shape.rotation = parameters_.rotates(layer) ? &rotation_ : &no_rotation_;
    for (Compression& compression : compressions_) compression.begin_layer(layer_.shape);
}

void Compressor::finish_chunk(std::uint32_t begin, std::uint32_t end) {
    if (parameters_.slides(model_layer_)) return;
    const std::uint32_t n = layer_.shape.tokens, first = n - layer_.window;
    const std::size_t d = std::size_t(parameters_.head_dim);
    for (std::uint32_t position = std::max(begin, first); position < end; ++position)
        for (std::size_t h = 0; h < std::size_t(parameters_.heads); ++h)
            std::copy_n(chunk_queries_.data() + (position - begin) * row() + h * d, d,
                        window_queries_.data() + (h * layer_.window + position - first) * d);
    if (!watching_) return;
    show_layer({});
    for (std::size_t i = 0; i < compressions_.size(); ++i) {
        if (!compressions_[i].watches_queries()) continue;
        const Stopwatch watch;
        compressions_[i].watch(observer_, {begin, end - begin, chunk_queries_.data()});
        const double spent = watch.seconds();
        spent_seconds_ += spent;
        seconds_[i] += spent;
    }
}

void Compressor::finish_layer(const std::function<PackedMatrix()>& output) {
    const bool slides = parameters_.slides(model_layer_);
    if (!slides) show_layer(output);
    for (std::size_t i = 0; i < compressions_.size(); ++i) {
        const Stopwatch watch;
        observer_.begin_user();
        RaggedCache& cache = caches_[i];
        if (i + 1 < compressions_.size())
            cache.share_layer(model_layer_, scratch_);
        else
            cache.take_layer(model_layer_, scratch_);  // so that what it keeps needs no copy
        if (slides)
            keep_window(cache);
        else
            evict(compressions_[i], cache);
        const double spent = watch.seconds();
        spent_seconds_ += spent;
        seconds_[i] += spent + observer_.borrowed_seconds();
    }
}

// The choice first, then the moving of what stays, of several heads at once.
void Compressor::evict(Compression& compression, RaggedCache& cache) {
    struct Head {
        int layer, head;
        std::vector<std::uint32_t> kept;
    };
    std::vector<Head> heads;
    compression.finish_layer(observer_, [&](int layer, int head, std::span<const std::uint32_t> kept) {
        heads.push_back({global_layers_[std::size_t(layer)], head, {kept.begin(), kept.end()}});
    });
    compute_.parallel(int(heads.size()), [&](int i, int) {
        const Head& h = heads[std::size_t(i)];
        cache.retain(h.layer, h.head, h.kept);
    });
}

// A sliding layer keeps what the next tokens see.
void Compressor::keep_window(RaggedCache& cache) {
    for (int h = 0; h < parameters_.kv_heads; ++h) {
        const std::uint32_t length = cache.length(model_layer_, h);
        std::vector<std::uint32_t> slots(std::min(length, parameters_.sliding_window));
        std::iota(slots.begin(), slots.end(), length - std::uint32_t(slots.size()));
        cache.retain(model_layer_, h, slots);
    }
}

void Compressor::show_layer(const std::function<PackedMatrix()>& output) {
    layer_.pages.clear();
    for (int h = 0; h < parameters_.kv_heads; ++h) layer_.pages.push_back(scratch_.pages(model_layer_, h));
    layer_.window_queries = window_queries_.data();
    layer_.output = output;
    if (grams_ && output) layer_.grams = grams_->layer(layer_.shape.layer, output);
    observer_.show(layer_);
}

}  // namespace holdfast
