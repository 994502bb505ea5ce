// Evicts while a context is read: what the layers show is recorded once, for any number of methods.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cache/ragged_cache.hpp"
#include "engine/gram_store.hpp"
#include "evict/compression.hpp"
#include "evict/observer.hpp"
#include "model/compute.hpp"
#include "model/model.hpp"

namespace holdfast {

// The model's numbers of layers that eviction works on: those that don't slide.
std::vector<int> global_layers(const HyperParameters& parameters);
// Their rotation, the same in all that rotate.
Rotation measure_rotation(const GgufModel& model, Compute& compute, std::span<const int> layers);

// shape: of the first layer. Reads the profile of a method that needs one.
Compression make_compression(const GgufModel& model, const CompressionRequest& request,
                             const LayerShape& shape);

// One per reading. Layers are read into a scratch cache, whose entries every request's own cache then takes
// what it keeps of.
class Compressor {
  public:
    // caches: of each request, from the scratch's pool, empty.
    Compressor(const GgufModel& model, Compute& compute, RaggedCache& scratch,
               std::span<const CompressionRequest> requests, std::span<RaggedCache> caches,
               std::uint32_t tokens, std::uint32_t chunk);

    const std::string& note(std::size_t request) const { return compressions_[request].note(); }
    // Where a chunk's queries go [tokens, heads, head_dim]; null if nobody looks at them.
    float* chunk_queries() { return chunk_queries_.empty() ? nullptr : chunk_queries_.data(); }

    void begin_layer(int layer);
    // Tokens [begin, end) of the layer were read: their keys and values are in the scratch, their queries in
    // chunk_queries().
    void finish_chunk(std::uint32_t begin, std::uint32_t end);
    // Leaves the layer in the caches, and nothing in the scratch. output: makes the layer's output
    // projection, if it is asked for; the layer's other weights may be lost.
    void finish_layer(const std::function<PackedMatrix()>& output);

    // Seconds that a request's choices took, or would have taken by itself where requests share observations.
    double seconds(std::size_t request) const { return seconds_[request]; }
    double spent_seconds() const { return spent_seconds_; }  // on all requests together

  private:
    std::size_t row() const { return std::size_t(parameters_.heads) * std::size_t(parameters_.head_dim); }
    void evict(Compression& compression, RaggedCache& cache);
    void keep_window(RaggedCache& cache);
    void show_layer(const std::function<PackedMatrix()>& output);

    const HyperParameters& parameters_;
    Compute& compute_;
    RaggedCache& scratch_;
    std::span<RaggedCache> caches_;
    std::vector<Compression> compressions_;
    std::vector<double> seconds_;
    double spent_seconds_ = 0;
    Rotation rotation_;               // of the layers below that rotate: the same in all
    const Rotation no_rotation_;      // of the others
    std::vector<int> global_layers_;  // the model's numbers of layers that eviction works on
    int model_layer_ = 0;
    Observer observer_;
    ObservedLayer layer_;
    std::optional<GramStore> grams_;
    bool watching_ = false;              // a method looks at every query
    std::vector<float> chunk_queries_;   // [tokens, heads, head_dim]
    std::vector<float> window_queries_;  // [heads, window, head_dim]
};

}  // namespace holdfast
