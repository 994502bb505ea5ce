// GGUF files that tests write: small random models, and copies of models without quantisation.
#pragma once

#include <cstdint>
#include <string>

#include "ggml.h"

namespace holdfast::testing {

#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;  // the kernels are twenty times slower: real documents are shorter
#else
constexpr bool sanitized = false;
#endif

struct RandomModel {
    int layers = 2;
    int hidden = 256;
    int heads = 6;
    int kv_heads = 2;
    int head_dim = 64;
    int feed_forward = 512;
    int vocabulary = 320;
    int context_length = 4096;
    bool tied = true;
    bool biases = false;             // of all projections but the output head
    bool rope_factors = false;       // as in Llama 3.1
    std::string rope_scaling;        // "", "linear" or "yarn", factor 4, original context 1024
    ggml_type type = GGML_TYPE_F32;  // of the matrices
    std::uint32_t seed = 1;
};

void write_random_model(const std::string& path, const RandomModel& model);

// The same model with its matrices expanded to F32: what a quantised file means, without any rounding of
// its products' inputs.
void write_exact_copy(const std::string& from, const std::string& to);

// A path for a test's file, in the system's folder for temporary files; removed at the end of the process.
std::string temporary_path(const std::string& name);

}  // namespace holdfast::testing
