#include "model/hyper_parameters.hpp"

#include <algorithm>
#include <cmath>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {

const std::vector<Architecture>& architectures() {
    const auto row = [](const char* name, int rope_mode, auto&& set) {
        Architecture architecture{name, rope_mode};
        set(architecture);
        return architecture;
    };
    constexpr int norm = GGML_ROPE_TYPE_NORMAL, neox = GGML_ROPE_TYPE_NEOX;
    using A = Architecture;
    const auto gemma = [](A& a) {
        a.activation = Activation::gelu;
        a.norms_behind = a.scaled_embedding = true;
    };
    static const std::vector<Architecture> table = {
        row("llama", norm, [](A& a) { a.experts = true; }),
        row("qwen2", neox, [](A&) {}),
        row("qwen2moe", neox,
            [](A& a) {
                a.experts = a.shared_expert_gate = true;
                a.expert_weights_sum_to_1 = false;
            }),
        row("qwen3", neox, [](A& a) { a.head_norm = HeadNorm::each_head; }),
        row("qwen3moe", neox,
            [](A& a) {
                a.head_norm = HeadNorm::each_head;
                a.experts = true;
            }),
        row("gemma2", neox,
            [&](A& a) {
                gemma(a);
                a.soft_caps = true;
                a.sliding_period = 2;
                a.sliding_window = 4096;
                a.wide_scale_layers = 46;
            }),
        row("gemma3", neox,
            [&](A& a) {
                gemma(a);
                a.head_norm = HeadNorm::each_head;
                a.final_soft_cap = true;
                a.sliding_period = 6;
                a.sliding_unscaled = true;
                a.sliding_freq_base = 10000;
                a.wide_scale_layers = 62;
            }),
        row("phi3", neox, [](A& a) { a.fused = true; }),
        row("smollm3", norm, [](A& a) { a.unrotated_period = 4; }),
        row("olmo2", neox,
            [](A& a) {
                a.head_norm = HeadNorm::whole_row;
                a.norms_before = false;
                a.norms_behind = true;
                a.sliding_period = 4;
                a.sliding_unscaled = true;
            }),
        row("granite", norm, [](A& a) { a.multipliers = true; }),
        row("granitemoe", norm, [](A& a) { a.multipliers = a.experts = true; }),
    };
    return table;
}

// What ggml_rope_ext is to multiply with under YaRN: 1 + 0.1 ln(factor), which it applies itself, so that it
// cancels; for less than 1 there is no correction to cancel.
float yarn_attention_factor(float freq_scale) {
    const float factor = 1 / freq_scale;
    const float wanted = factor <= 1 ? 1.0f : 0.1f * std::log(factor) + 1.0f;
    return wanted / (1.0f + 0.1f * std::log(factor));
}

Rope read_rope(const GgufFile& file, const std::string& prefix, std::uint32_t context_length) {
    Rope rope;
    const auto number = [&](const char* key, double otherwise) {
        return float(file.number(prefix + key).value_or(otherwise));
    };
    rope.freq_base = number("rope.freq_base", 10000);
    rope.original_context = std::uint32_t(number("rope.scaling.original_context_length", context_length));
    const std::string type = file.text(prefix + "rope.scaling.type").value_or("linear");
    const float factor = number("rope.scaling.factor", number("rope.scale_linear", 0));
    if (type == "none") return rope;
    if (type != "linear" && type != "yarn" && type != "longrope")
        throw Error("'" + file.path() + "' uses the rope scaling '" + type +
                    "', which isn't supported; linear, yarn and longrope are");
    if (factor > 0) rope.freq_scale = 1 / factor;
    // Files with linear scaling often give the scaled length alone.
    if (type == "linear" && factor > 1 && !file.number(prefix + "rope.scaling.original_context_length"))
        rope.original_context = std::uint32_t(float(context_length) / factor);
    if (type == "longrope") {
        rope.scaling = RopeScaling::longrope;
    } else if (type == "linear") {
        if (factor > 0) rope.scaling = RopeScaling::linear;
    } else {
        rope.scaling = RopeScaling::yarn;
        rope.ext_factor = 1;
        rope.attn_factor = yarn_attention_factor(rope.freq_scale);
    }
    rope.file_attn_factor = number("rope.scaling.attn_factor", 1);
    rope.attn_factor *= rope.file_attn_factor;
    return rope;
}

// Which layers slide: a period or a list of the file's, or the architecture's period.
void read_sliding(const GgufFile& file, const std::string& prefix, HyperParameters& p) {
    const Architecture& a = p.architecture;
    p.sliding.assign(std::size_t(p.layers), false);
    p.sliding_rope = p.rope;
    if (a.sliding_period == 0) return;
    p.sliding_window =
        std::uint32_t(file.number(prefix + "attention.sliding_window").value_or(a.sliding_window));
    if (p.sliding_window == 0) return;
    const std::string key = prefix + "attention.sliding_window_pattern";
    if (const auto list = file.booleans(key)) {
        if (list->size() < p.sliding.size())
            throw Error("'" + file.path() + "': key " + key + " has too few entries");
        std::copy_n(list->begin(), p.layers, p.sliding.begin());
    } else {
        const int period = int(file.number(key).value_or(a.sliding_period));
        for (int l = 0; l < p.layers; ++l) p.sliding[std::size_t(l)] = period == 0 || l % period < period - 1;
    }
    if (a.sliding_unscaled) {
        p.sliding_rope = Rope();
        p.sliding_rope.original_context = p.rope.original_context;
        p.sliding_rope.freq_base = a.sliding_freq_base > 0 ? a.sliding_freq_base : p.rope.freq_base;
    }
    p.sliding_rope.freq_base =
        float(file.number(prefix + "rope.freq_base_swa").value_or(p.sliding_rope.freq_base));
}

void read_experts(const GgufFile& file, const std::string& prefix, HyperParameters& p) {
    const auto count = [&](const char* key) { return int(file.number(prefix + key).value_or(0)); };
    p.experts = count("expert_count");
    if (p.experts == 0) return;
    if (!p.architecture.experts)
        throw Error("'" + file.path() + "': mixtures of experts aren't supported for the architecture " +
                    p.architecture.name);
    p.experts_used = count("expert_used_count");
    if (p.experts < 1 || p.experts_used < 1 || p.experts_used > p.experts)
        throw Error("'" + file.path() + "': " + std::to_string(p.experts_used) + " of " +
                    std::to_string(p.experts) + " experts can't be used");
    p.expert_feed_forward = count("expert_feed_forward_length");
    p.shared_feed_forward = count("expert_shared_feed_forward_length");
    if (file.number(prefix + "expert_group_count").value_or(0) > 1)
        throw Error("'" + file.path() + "': groups of experts aren't supported");
}

}  // namespace

int HyperParameters::global_layers() const {
    return int(std::count(sliding.begin(), sliding.end(), false));
}

const Architecture& find_architecture(const std::string& name) {
    std::string known;
    for (const Architecture& architecture : architectures()) {
        if (architecture.name == name) return architecture;
        known += (known.empty() ? "" : ", ") + architecture.name;
    }
    throw Error("the architecture '" + name + "' isn't supported; supported are: " + known);
}

HyperParameters read_hyper_parameters(const GgufFile& file) {
    const std::optional<std::string> architecture = file.text("general.architecture");
    if (!architecture) throw Error("'" + file.path() + "' lacks the key general.architecture");

    HyperParameters p;
    p.architecture = find_architecture(*architecture);
    p.name = file.text("general.name").value_or(*architecture);
    const std::string prefix = *architecture + ".";
    const auto count = [&](const char* key) {
        const double value = file.required_number(prefix + key);
        if (value < 1 || value > 1e9 || value != std::floor(value))
            throw Error("'" + file.path() + "': key " + prefix + key + " has the senseless value " +
                        std::to_string(value));
        return int(value);
    };
    p.layers = count("block_count");
    p.hidden = count("embedding_length");
    p.heads = count("attention.head_count");
    p.kv_heads = file.number(prefix + "attention.head_count_kv") ? count("attention.head_count_kv") : p.heads;
    p.feed_forward = count("feed_forward_length");
    p.context_length = std::uint32_t(count("context_length"));
    p.rms_epsilon = float(file.required_number(prefix + "attention.layer_norm_rms_epsilon"));
    const std::optional<std::size_t> tokens = file.array_length("tokenizer.ggml.tokens");
    p.vocabulary = tokens ? int(*tokens) : count("vocab_size");

    const auto refuse = [&](const std::string& what) { throw Error("'" + file.path() + "': " + what); };
    if (p.heads % p.kv_heads != 0)
        refuse(std::to_string(p.heads) + " query heads can't share " + std::to_string(p.kv_heads) +
               " KV heads");
    if (!file.number(prefix + "attention.key_length") && p.hidden % p.heads != 0)
        refuse("the hidden size " + std::to_string(p.hidden) + " isn't a multiple of " +
               std::to_string(p.heads) + " heads");
    p.head_dim = int(file.number(prefix + "attention.key_length").value_or(p.hidden / p.heads));
    if (int(file.number(prefix + "attention.value_length").value_or(p.head_dim)) != p.head_dim)
        refuse("keys and values of different length aren't supported");
    p.rotated = int(file.number(prefix + "rope.dimension_count").value_or(p.head_dim));
    if (p.rotated < 2 || p.rotated > p.head_dim || p.rotated % 2 != 0)
        refuse("a rotation of " + std::to_string(p.rotated) + " of " + std::to_string(p.head_dim) +
               " dimensions isn't supported");
    if (p.head_dim < 1 || p.head_dim > 1024 || p.head_dim % 2 != 0)
        refuse("the head size " + std::to_string(p.head_dim) + " isn't supported");

    if (p.layers > int(file.tensor_names().size()))
        refuse("it claims " + std::to_string(p.layers) + " layers and holds " +
               std::to_string(file.tensor_names().size()) + " tensors");
    if (file.number(prefix + "attention.causal").value_or(1) == 0)
        refuse("attention to later tokens (an embedding model) isn't supported");
    for (const char* key : {"attention.key_length_swa", "attention.value_length_swa"})
        if (file.number(prefix + key).value_or(p.head_dim) != p.head_dim)
            refuse("sliding layers with heads of another size aren't supported");
    if (file.number(prefix + "rope.dimension_count_swa").value_or(p.rotated) != p.rotated)
        refuse("sliding layers that rotate otherwise in part aren't supported");

    p.rope = read_rope(file, prefix, p.context_length);
    // Older files of Phi-3 have the factors and don't name the scaling.
    if (file.tensor("rope_factors_long.weight") != nullptr) p.rope.scaling = RopeScaling::longrope;
    read_sliding(file, prefix, p);
    read_experts(file, prefix, p);
    const Architecture a = p.architecture;
    const auto number = [&](const char* key, double otherwise) {
        return float(file.number(prefix + key).value_or(otherwise));
    };
    p.attention_scale = 1.0f / std::sqrt(float(p.head_dim));
    if (a.wide_scale_layers == p.layers)
        p.attention_scale = 1.0f / std::sqrt(float(p.hidden) / float(p.heads));
    if (a.soft_caps) p.attention_soft_cap = number("attn_logit_softcapping", 50);
    if (a.soft_caps || a.final_soft_cap)
        p.final_soft_cap = number("final_logit_softcapping", a.soft_caps ? 30 : 0);
    if (a.scaled_embedding) p.embedding_scale = std::sqrt(float(p.hidden));
    if (a.multipliers) {
        const auto factor = [&](const char* key) { return number(key, 0) == 0 ? 1.0f : number(key, 0); };
        p.embedding_scale = factor("embedding_scale");
        p.residual_scale = factor("residual_scale");
        file.required_number(prefix + "logit_scale");
        p.logit_scale = 1 / factor("logit_scale");
        if (number("attention.scale", 0) != 0) p.attention_scale = number("attention.scale", 0);
        if (a.name == "granite" && number("rope.scaling.finetuned", 1) == 0)
            p.architecture.unrotated_period = 1;
    }
    return p;
}

void apply_options(HyperParameters& p, const ModelOptions& options) {
    Rope& rope = p.rope;
    const std::string& wanted = options.rope_scaling;
    if (!wanted.empty()) {
        if (wanted != "none" && wanted != "linear" && wanted != "yarn")
            throw Error("no rope scaling '" + wanted +
                            "'; there are none, linear and yarn (longrope comes from "
                            "the file alone)",
                        Error::Kind::usage);
        if (rope.scaling == RopeScaling::longrope)
            throw Error(
                "the model's file has rope factors of its own (longrope); --rope-scaling can't replace "
                "them",
                Error::Kind::usage);
        if (wanted == "none" && options.rope_scale > 0)
            throw Error("--rope-scale has no effect with --rope-scaling none", Error::Kind::usage);
        if (wanted != "none" && options.rope_scale == 0 && rope.freq_scale == 1 &&
            options.context_length <= p.context_length)
            throw Error("--rope-scaling " + wanted +
                            " needs a factor: give --rope-scale, or a longer context "
                            "with -c",
                        Error::Kind::usage);
        rope.scaling = wanted == "none"     ? RopeScaling::none
                       : wanted == "linear" ? RopeScaling::linear
                                            : RopeScaling::yarn;
        if (wanted == "none") {
            rope.freq_scale = 1;
            p.context_length = rope.original_context;
        }
        rope.ext_factor = wanted == "yarn" ? 1.0f : 0.0f;
        rope.attn_factor = 1;
    }
    if (options.rope_scale > 0) {
        if (rope.scaling != RopeScaling::linear && rope.scaling != RopeScaling::yarn)
            throw Error("--rope-scale needs a scaling: --rope-scaling linear or yarn", Error::Kind::usage);
        rope.freq_scale = 1 / options.rope_scale;
        p.context_length =
            std::max(p.context_length, std::uint32_t(float(rope.original_context) * options.rope_scale));
    }
    const std::uint32_t length = options.context_length;
    if (length > p.context_length) {
        if (rope.scaling != RopeScaling::linear && rope.scaling != RopeScaling::yarn)
            throw Error(
                "-c " + std::to_string(length) + " exceeds the " + std::to_string(p.context_length) +
                    " tokens that the model was trained for, and its file has no rope scaling to "
                    "extend them" +
                    (rope.scaling == RopeScaling::none ? "; --rope-scaling yarn or linear adds one" : ""),
                Error::Kind::usage);
        if (options.rope_scale > 0)
            throw Error("-c " + std::to_string(length) + " exceeds the " + std::to_string(p.context_length) +
                            " tokens of --rope-scale",
                        Error::Kind::usage);
        rope.freq_scale = std::min(rope.freq_scale, float(rope.original_context) / float(length));
    }
    if (length > 0) p.context_length = length;
    if (rope.ext_factor != 0)
        rope.attn_factor = rope.file_attn_factor * yarn_attention_factor(rope.freq_scale);
}

}  // namespace holdfast
