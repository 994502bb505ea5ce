#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/options.hpp"
#include "model/gguf_file.hpp"

namespace holdfast {

enum class Activation { silu, gelu };
enum class HeadNorm { none, each_head, whole_row };  // of queries and keys, before rotation

// One row a supported architecture: what its GGUF files leave unsaid.
struct Architecture {
    std::string name;
    int rope_mode;  // GGML_ROPE_TYPE_NORMAL (pairs of neighbours) or _NEOX (halves)
    Activation activation = Activation::silu;
    HeadNorm head_norm = HeadNorm::none;
    bool norms_before = true;       // of attention and feed-forward's input
    bool norms_behind = false;      // of their output, before it is added
    bool scaled_embedding = false;  // by the square root of the hidden size
    bool fused = false;             // Q, K, V in one matrix, gate and up in another
    bool experts = false;           // its files may hold mixtures of experts
    bool expert_weights_sum_to_1 = true;
    bool shared_expert_gate = false;
    bool multipliers = false;     // Granite's: of embedding, residual, logits
    bool soft_caps = false;       // of attention scores and logits; Gemma 2's defaults
    bool final_soft_cap = false;  // of logits, where the file has one
    int sliding_period = 0;       // of every so many layers the last sees everything; 0: no sliding layers
    std::uint32_t sliding_window = 0;  // where the file has none
    bool sliding_unscaled = false;     // sliding layers rotate without the file's scaling
    float sliding_freq_base = 0;       // their rotation's base where the file has none; 0: the others'
    int unrotated_period = 0;          // of every so many layers the last doesn't rotate
    int wide_scale_layers = 0;         // models of so many layers scale attention by hidden / heads
};

// Throws Error that names the architecture and lists the supported ones.
const Architecture& find_architecture(const std::string& name);

enum class RopeScaling { none, linear, yarn, longrope };

// Rotary position embedding, in the terms of ggml_rope_ext.
struct Rope {
    RopeScaling scaling = RopeScaling::none;
    float freq_base = 10000;
    float freq_scale = 1;  // 1 / scaling factor
    float ext_factor = 0;  // YaRN: share of extrapolation
    float attn_factor = 1;
    float file_attn_factor = 1;           // the file's part of it
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
    int rotated = 0;  // dimensions of a head that are rotated
    Rope rope;
    Rope sliding_rope;  // of sliding layers

    float attention_scale = 1;  // of query · key; head_dim^-½ unless the model says otherwise
    float attention_soft_cap = 0, final_soft_cap = 0;  // 0: none
    float embedding_scale = 1, residual_scale = 1, logit_scale = 1;

    std::uint32_t sliding_window = 0;  // tokens that a query of a sliding layer sees, itself among them
    std::vector<bool> sliding;         // [layers]

    int experts = 0, experts_used = 0;
    int expert_feed_forward = 0, shared_feed_forward = 0;

    int group() const { return heads / kv_heads; }
    bool slides(int layer) const { return sliding[std::size_t(layer)]; }
    bool rotates(int layer) const {
        return architecture.unrotated_period == 0 || (layer + 1) % architecture.unrotated_period != 0;
    }
    const Rope& rope_of(int layer) const { return slides(layer) ? sliding_rope : rope; }
    int global_layers() const;  // those that see everything: eviction is theirs
};

// Reads and checks them; throws Error that names what is missing, inconsistent or not supported.
HyperParameters read_hyper_parameters(const GgufFile& file);

// A context larger than the file's needs scaling: the file's own linear or YaRN scaling, whose factor grows
// to match, or that of the options. Throws Error (usage) for what can't be.
void apply_options(HyperParameters& parameters, const ModelOptions& options);

}  // namespace holdfast
