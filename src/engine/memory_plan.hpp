#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "holdfast/budget.hpp"
#include "evict/compression.hpp"
#include "model/model.hpp"

namespace holdfast {

// Bytes that reading a context takes, known before the work starts.
struct MemoryPlan {
    std::size_t weights = 0;        // mapped from the file
    std::size_t quantized = 0;      // copies of weights in the layout of our products
    std::size_t hidden = 0;         // hidden states of the whole context
    std::size_t layer_kv = 0;       // one layer's keys and values before eviction
    std::size_t layer_weights = 0;  // one layer's matrices that are expanded to fp32
    std::size_t layer_work = 0;     // activations of a chunk, observation of a layer
    std::size_t kv_full = 0;     // the whole cache, nothing evicted but what sliding layers never see again
    std::size_t kv_kept = 0;     // the cache at the budget
    std::size_t kv_sliding = 0;  // of both, the windows of sliding layers

    std::size_t layer_scratch() const { return layer_kv + layer_weights + layer_work; }
    // Above the weights, at the most.
    std::size_t peak() const { return hidden + layer_scratch() + kv_kept; }
};

// Of one reading that is compressed in these ways. chunk: tokens that go through a layer together.
MemoryPlan plan_memory(const GgufModel& model, std::uint32_t tokens,
                       std::span<const CompressionRequest> requests, std::uint32_t chunk, int threads);

// Of one layer of a context of `tokens` tokens; `layers` counts those that eviction works on: not sliding
// ones.
LayerShape layer_shape(const HyperParameters& parameters, std::uint32_t tokens);

// Of the keys and values of a context's tokens, those aside that sliding layers never see again.
std::size_t full_cache_bytes(const HyperParameters& parameters, std::uint32_t tokens);

// Throws Error that names the plan's largest part and a remedy if the system hasn't as much to give.
void check_fits(const MemoryPlan& plan, std::size_t available);

}  // namespace holdfast
