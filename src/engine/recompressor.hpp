// Compresses contexts again that have grown: docs/recompression.md.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/ragged_cache.hpp"
#include "engine/gram_store.hpp"
#include "evict/compression.hpp"
#include "evict/observer.hpp"
#include "model/compute.hpp"
#include "model/decoder_graph.hpp"
#include "model/model.hpp"

namespace holdfast {

// Throws Error (usage) for a method that must see more of a context than its last queries.
void check_recompression(const Method& method);

// Entries that a budget allows a context of `tokens` tokens, sliding layers aside, and those that it has.
std::size_t allowed_entries(const HyperParameters& parameters, const Budget& budget, std::uint32_t tokens);
std::size_t held_entries(const HyperParameters& parameters, const RaggedCache& cache);

class Recompressor {
  public:
    // decoder: reads the window again.
    Recompressor(const GgufModel& model, Compute& compute, DecoderGraph& decoder);

    // Leaves of the cache's entries no more than the budget allows, each where it was read. tokens: all that
    // were read so far [cache.next_position()]. Returns where the budget couldn't be applied as written, or
    // "".
    std::string compress(std::span<const int> tokens, RaggedCache& cache, const CompressionRequest& request);

  private:
    std::vector<float> read_window(std::span<const int> window, RaggedCache& cache);

    const GgufModel& model_;
    Compute& compute_;
    DecoderGraph& decoder_;
    Rotation rotation_;
    const Rotation no_rotation_;
    std::vector<int> global_layers_;
    Observer observer_;
    ExpandedLayer weights_;
    std::optional<GramStore> grams_;
};

}  // namespace holdfast
