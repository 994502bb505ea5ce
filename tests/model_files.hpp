// GGUF files that tests write: small random models, and copies of models without quantisation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ggml.h"
#include "gguf.h"

namespace holdfast::testing {

#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;  // the kernels are twenty times slower: real documents are shorter
#else
constexpr bool sanitized = false;
#endif

struct RandomModel {
    std::string architecture = "llama";  // whose tensors and keys the file has
    int layers = 2;
    int hidden = 256;
    int heads = 6;
    int kv_heads = 2;
    int head_dim = 64;
    int feed_forward = 512;
    int vocabulary = 320;
    int context_length = 4096;
    bool tied = true;
    bool biases = false;        // of all projections but the output head
    float gain = 1.5f;          // of queries and keys: how clearly attention prefers some tokens
    bool qkv_biases = false;    // of queries, keys and values alone
    bool fused = false;         // Q, K and V in one matrix (and, for phi3, gate and up)
    int rotated = 0;            // dimensions of a head; 0: all
    int sliding_window = 0;     // of architectures with sliding layers
    int sliding_period = 0;     // written to the file if it isn't 0
    bool sliding_list = false;  // the pattern as a list of truth values
    float final_soft_cap = 0;
    int experts = 0, experts_used = 2, expert_feed_forward = 0, shared_feed_forward = 0;
    bool rope_factors = false;       // as in Llama 3.1
    bool long_rope = false;          // factors for long and short contexts, original context 1024
    std::string rope_scaling;        // "", "linear" or "yarn", factor 4, original context 1024
    ggml_type type = GGML_TYPE_F32;  // of the matrices
    std::uint32_t seed = 1;
    std::function<void(gguf_context*)> more_keys = {};  // added to the file's, or in their place
};

// Three layers of 96, heads of 16: what most tests of contexts read.
inline RandomModel small_model() {
    RandomModel model;
    model.hidden = 96;
    model.heads = 6;
    model.head_dim = 16;
    model.feed_forward = 128;
    model.layers = 3;
    return model;
}

void write_random_model(const std::string& path, const RandomModel& model);

// The model's tensors in `parts` files NAME-00001-of-…; returns the first one's path.
std::string write_split_copy(const std::string& from, const std::string& name, int parts);

// A SentencePiece vocabulary of letters, a few words and bytes, without a model's tensors.
void write_sentencepiece_vocabulary(const std::string& path, const std::string& chat_template);

// The same model with its matrices expanded to F32: what a quantised file means, without any rounding of
// its products' inputs.
void write_exact_copy(const std::string& from, const std::string& to);

// A path for a test's file, in the system's folder for temporary files; removed at the end of the process.
std::string temporary_path(const std::string& name);

}  // namespace holdfast::testing
