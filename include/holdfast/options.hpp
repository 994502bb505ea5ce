// What is asked of a model, a reading and a session, and what a reading reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/export.h"

namespace holdfast {

// How a model is to be used; what is unset is the file's own.
struct ModelOptions {
    std::uint32_t context_length = 0;  // tokens
    std::string rope_scaling;          // "none", "linear", "yarn"
    float rope_scale = 0;              // the factor; 0: the file's, or what the context length needs

    bool operator==(const ModelOptions&) const = default;
};

struct Sampling {
    float temperature = 0;  // 0: the most likely token
    std::uint64_t seed = 0;
};

// How a context file stores keys and values: as they are in memory, or 8 bits and a scale for 32 of them.
enum class KvType { f16, q8_0 };
HOLDFAST_API KvType parse_kv_type(const std::string& name);  // throws Error (usage) that lists them
HOLDFAST_API const char* kv_type_name(KvType type);

// A reading goes layer by layer.
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
    int sliding_layers = 0;         // keep their window, whatever the method
    std::size_t kv_bytes = 0;       // of the kept pages
    std::size_t kv_bytes_full = 0;  // of the whole cache, nothing evicted but what sliding layers never see
    std::size_t planned_peak_bytes = 0;  // above the weights, at the most; 0: nothing was read
    std::size_t peak_bytes = 0;  // most resident above what was at the start, mapped files aside; 0 likewise
    double prefill_seconds = 0;
    double compression_seconds = 0;
    std::string note;  // where the budget couldn't be applied as written; otherwise empty
};

struct SourceFile {
    std::string name;
    std::uint64_t bytes = 0;
    std::string hash;  // XXH3 of its content, 16 hex digits
};

// What a context says of itself, in a file too.
struct ContextInfo {
    std::string model_name, model_path, fingerprint;
    std::string method, explanation, budget;  // explanation: the method's parts and parameters, one a line
    std::string question;                     // that the compression knew; empty: question-agnostic
    bool conversation = false;                // it ends with an answer
    KvType kv_type = KvType::f16;
    std::uint32_t tokens = 0;  // read; the next one's position
    int layers = 0, kv_heads = 0, head_dim = 0;
    ModelOptions model_options;   // that the model was opened with
    std::vector<double> reading;  // context length and rotation that came of them
    std::vector<SourceFile> sources;
};

}  // namespace holdfast
