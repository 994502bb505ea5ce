// Reading a context: layer-major prefill with eviction layer by layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/ragged_cache.hpp"
#include "engine/compressor.hpp"
#include "engine/memory_plan.hpp"
#include "holdfast/budget.hpp"
#include "holdfast/method.hpp"
#include "holdfast/options.hpp"
#include "model/compute.hpp"
#include "model/model.hpp"

namespace holdfast {

constexpr std::uint32_t default_chunk = 160;  // tokens that go through a layer together

struct ReadSettings {
    Method method = Method::full();
    Budget budget;  // not used by a method that keeps everything
    std::uint32_t chunk = default_chunk;
};

// A context that was read, compressed, and can be asked any number of times.
struct ReadContext {
    RaggedCache cache;
    ReadReport report;
    std::vector<float> last_hidden;  // of the last token after the last layer [hidden]; empty: was loaded
};

// What a report says of a cache.
ReadReport report_of(const HyperParameters& parameters, const RaggedCache& cache);

// tokens: at least one, at most the model's context length. Throws Error (interrupted) if the compute
// is cancelled meanwhile, Error if the plan doesn't fit in memory (before any work).
ReadContext read_context(const GgufModel& model, Compute& compute, std::span<const int> tokens,
                         const ReadSettings& settings,
                         const std::function<void(const ReadProgress&)>& progress = {});

// One reading, compressed in several ways: the same contexts as if each were read by itself.
std::vector<ReadContext> read_contexts(const GgufModel& model, Compute& compute, std::span<const int> tokens,
                                       std::span<const CompressionRequest> requests,
                                       const std::function<void(const ReadProgress&)>& progress = {},
                                       std::uint32_t chunk = default_chunk);

}  // namespace holdfast
