#include "engine/recompressor.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

#include "holdfast/error.hpp"
#include "engine/cache_folder.hpp"
#include "engine/compressor.hpp"
#include "engine/memory_plan.hpp"

namespace holdfast {

namespace {

constexpr std::size_t block_tokens = 64;

// Keeps a head's entries at these positions (rising), at least its last one.
void retain_positions(RaggedCache& cache, int layer, int head, std::span<const std::uint32_t> positions) {
    const std::span<const std::uint32_t> there = cache.positions(layer, head);
    std::vector<std::uint32_t> slots;
    auto next = positions.begin();
    for (std::uint32_t slot = 0; slot < there.size(); ++slot) {
        next = std::lower_bound(next, positions.end(), there[slot]);
        if (next != positions.end() && *next == there[slot]) slots.push_back(slot);
    }
    if (slots.empty() && !there.empty()) slots.push_back(std::uint32_t(there.size() - 1));
    if (slots.size() < there.size()) cache.retain(layer, head, slots);
}

}  // namespace

void check_recompression(const Method& method) {
    if (method.keeps_all()) return;
    const MethodSettings& settings = method.settings();
    const std::unique_ptr<Scorer> scorer =
        method.scorer().make({settings, method.worst_case(), method.critical() != Critical::none});
    if (scorer->watches_queries())
        throw Error("'" + method.name() +
                        "' chooses by all queries of a context, which are gone when it is compressed again; "
                        "take a method that looks at the last ones, like layer-defensive",
                    Error::Kind::usage);
}

std::size_t allowed_entries(const HyperParameters& p, const Budget& budget, std::uint32_t tokens) {
    return budget.entries(tokens, std::size_t(p.global_layers()) * std::size_t(p.kv_heads));
}

std::size_t held_entries(const HyperParameters& p, const RaggedCache& cache) {
    std::size_t entries = 0;
    for (int l = 0; l < p.layers; ++l)
        for (int h = 0; h < p.kv_heads && !p.slides(l); ++h) entries += cache.length(l, h);
    return entries;
}

Recompressor::Recompressor(const GgufModel& model, Compute& compute, DecoderGraph& decoder)
    : model_(model),
      compute_(compute),
      decoder_(decoder),
      global_layers_(global_layers(model.parameters())),
      observer_(
          [&compute](int count, const std::function<void(int, int)>& task) { compute.parallel(count, task); },
          compute.threads()) {
    rotation_ = measure_rotation(model, compute, global_layers_);
}

// The queries [layers, window, heads, head_dim] of a context's last tokens, read once more behind the cache.
std::vector<float> Recompressor::read_window(std::span<const int> window, RaggedCache& cache) {
    const HyperParameters& p = model_.parameters();
    const std::size_t row = std::size_t(p.heads) * std::size_t(p.head_dim), layers = std::size_t(p.layers);
    std::vector<float> queries(layers * window.size() * row), of_block;
    for (std::size_t begin = 0; begin < window.size(); begin += block_tokens) {
        const auto block = window.subspan(begin, std::min(block_tokens, window.size() - begin));
        of_block.resize(layers * block.size() * row);
        decoder_.run(block, cache, {of_block.data(), nullptr, block.size()});
        for (std::size_t l = 0; l < layers; ++l)
            std::copy_n(of_block.data() + l * block.size() * row, block.size() * row,
                        queries.data() + (l * window.size() + begin) * row);
    }
    return queries;
}

std::string Recompressor::compress(std::span<const int> tokens, RaggedCache& cache,
                                   const CompressionRequest& request) {
    check_recompression(request.method);
    const HyperParameters& p = model_.parameters();
    const auto n = std::uint32_t(tokens.size());
    LayerShape shape = layer_shape(p, n);
    Compression compression = make_compression(model_, request, shape);
    if (compression.keeps_all() || held_entries(p, cache) <= allowed_entries(p, request.budget, n))
        return compression.note();

    // What the last queries see: a copy, in which every head has the window.
    const std::uint32_t window = compression.window_queries();
    RaggedCache seen(cache);
    std::vector<float> all_queries;
    if (window > 0) {
        seen.truncate(n - window);
        all_queries = read_window(tokens.last(window), seen);
    }
    const bool weighs = request.method.critical() != Critical::none;
    if (request.method.needs_grams() && !grams_) grams_.emplace(model_, compute_, cache_folder());

    // Of all tokens, those that a head is to keep: of layers seen so far. Lists of slots in terms of them
    // become positions.
    std::vector<std::vector<std::uint32_t>> kept(std::size_t(shape.layers) * std::size_t(p.kv_heads));
    const std::size_t heads = std::size_t(p.heads), d = std::size_t(p.head_dim);
    std::vector<float> queries(heads * window * d);
    for (int index = 0; index < shape.layers; ++index) {
        const int layer = global_layers_[std::size_t(index)];
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t q = 0; q < window; ++q)
                std::copy_n(all_queries.data() + ((std::size_t(layer) * window + q) * heads + h) * d, d,
                            queries.data() + (h * window + q) * d);
        ObservedLayer observed;
        shape.layer = index;
        shape.rotation = p.rotates(layer) ? &rotation_ : &no_rotation_;
        observed.shape = shape;
        observed.window = window;
        observed.window_queries = queries.data();
        for (int h = 0; h < p.kv_heads; ++h) {
            observed.pages.push_back(seen.pages(layer, h));
            observed.positions.push_back(seen.positions(layer, h));
        }
        if (weighs) {
            observed.output = [this, layer] { return weights_.expand_output(model_, layer, compute_); };
            if (request.method.needs_grams()) observed.grams = grams_->layer(index, observed.output);
        }
        compression.begin_layer(shape);
        observer_.show(std::move(observed));
        compression.finish_layer(observer_, [&](int l, int h, std::span<const std::uint32_t> slots) {
            std::vector<std::uint32_t>& head = kept[std::size_t(l * p.kv_heads + h)];
            if (head.empty()) {
                head.assign(slots.begin(), slots.end());
            } else {
                for (std::size_t i = 0; i < slots.size(); ++i) head[i] = head[slots[i]];
                head.resize(slots.size());
            }
        });
    }
    { const RaggedCache gone(std::move(seen)); }  // or every page would be shared, and copied
    for (std::size_t i = 0; i < kept.size(); ++i)
        if (!kept[i].empty())
            retain_positions(cache, global_layers_[i / std::size_t(p.kv_heads)],
                             int(i % std::size_t(p.kv_heads)), kept[i]);
    return compression.note();
}

}  // namespace holdfast
