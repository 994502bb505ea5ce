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
#include "model/compute.hpp"
#include "model/model.hpp"

namespace holdfast {

struct ReadSettings {
    Method method = Method::full();
    Budget budget;              // not used by a method that keeps everything
    std::uint32_t chunk = 512;  // tokens that go through a layer together
};

struct ReadProgress {
    int layer = 0, layers = 0;
    std::uint32_t tokens_done = 0, tokens = 0;  // in this layer
    double seconds = 0;                         // since the start
    double share() const { return (double(layer) + double(tokens_done) / double(tokens)) / double(layers); }
};

struct ReadReport {
    std::uint32_t tokens = 0;
    std::uint32_t kept_least = 0, kept_most = 0;  // of a head, sliding layers aside
    double kept_mean = 0;
    int sliding_layers = 0;    // keep their window, whatever the method
    std::size_t kv_bytes = 0;  // of the kept pages
    MemoryPlan plan;
    std::size_t peak_bytes = 0;  // most resident above what was at the start, mapped files aside
    double prefill_seconds = 0;
    double compression_seconds = 0;
    std::string note;  // where the budget couldn't be applied as written; otherwise empty
};

// A context that was read, compressed, and can be asked any number of times.
struct Context {
    RaggedCache cache;
    ReadReport report;
    std::vector<float> last_hidden;  // of the last token after the last layer [hidden]
};

// Fills in what a report says of the kept entries; report.tokens is there already.
void summarize(const HyperParameters& parameters, const RaggedCache& cache, ReadReport& report);

// tokens: at least one, at most the model's context length. Throws Error (interrupted) if the compute's
// cancel flag is set meanwhile, Error if the plan doesn't fit in memory (before any work).
Context read_context(const Model& model, Compute& compute, std::span<const int> tokens,
                     const ReadSettings& settings,
                     const std::function<void(const ReadProgress&)>& progress = {});

// One reading, compressed in several ways: the same contexts as if each were read by itself.
std::vector<Context> read_contexts(const Model& model, Compute& compute, std::span<const int> tokens,
                                   std::span<const CompressionRequest> requests, std::uint32_t chunk = 512,
                                   const std::function<void(const ReadProgress&)>& progress = {});

}  // namespace holdfast
