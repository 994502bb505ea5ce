#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/gguf_file.hpp"

namespace holdfast {

// One row a supported architecture: what its GGUF files leave unsaid.
struct Architecture {
    std::string name;
    int rope_mode;  // GGML_ROPE_TYPE_NORMAL (pairs of neighbours) or GGML_ROPE_TYPE_NEOX (halves)
};

// Throws Error that names the architecture and lists the supported ones.
const Architecture& find_architecture(const std::string& name);

enum class RopeScaling { none, linear, yarn };

// Rotary position embedding, in the terms of ggml_rope_ext.
struct Rope {
    RopeScaling scaling = RopeScaling::none;
    float freq_base = 10000;
    float freq_scale = 1;  // 1 / scaling factor
    float ext_factor = 0;  // YaRN: share of extrapolation
    float attn_factor = 1;
    float log_multiplier = 0;  // YaRN: of the magnitude correction that the file leaves to the model
    float beta_fast = 32, beta_slow = 1;  // YaRN: rotations at which interpolation begins and ends
    std::uint32_t original_context = 0;   // tokens, before scaling
};

struct HyperParameters {
    Architecture architecture;
    std::string name;  // the file's own name for the model
    int layers = 0;
    int hidden = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;
    int feed_forward = 0;
    int vocabulary = 0;
    std::uint32_t context_length = 0;  // tokens that the model was trained (or its file scaled) for
    float rms_epsilon = 1e-5f;
    Rope rope;

    int group() const { return heads / kv_heads; }
    float attention_scale() const;  // head_dim^-½
};

// Reads and checks them; throws Error that names what is missing, inconsistent or not supported.
HyperParameters read_hyper_parameters(const GgufFile& file);

// The context the model is to be used with: 0 is the file's own. A larger one needs a file with linear or
// YaRN scaling, whose factor grows to match; otherwise throws Error (usage).
void extend_context(HyperParameters& parameters, std::uint32_t context_length);

}  // namespace holdfast
