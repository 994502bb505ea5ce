#include "model/hyper_parameters.hpp"

#include <array>
#include <cmath>

#include "base/error.hpp"

namespace holdfast {

namespace {

const std::vector<Architecture>& architectures() {
    static const std::vector<Architecture> table = {
        {"llama", GGML_ROPE_TYPE_NORMAL},
    };
    return table;
}

// The magnitude correction of YaRN for a scaling factor.
float yarn_magnitude(float factor, float multiplier) {
    return factor <= 1 ? 1.0f : 0.1f * multiplier * std::log(factor) + 1.0f;
}

// What ggml_rope_ext is to multiply with. It applies 1 + 0.1 ln(factor) itself, so that is divided out.
float yarn_attention_factor(float freq_scale, float log_multiplier) {
    const float factor = 1 / freq_scale;
    const float wanted = log_multiplier != 0
                             ? yarn_magnitude(factor, 1) / yarn_magnitude(factor, log_multiplier)
                             : yarn_magnitude(factor, 1);
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
    if (type != "linear" && type != "yarn")
        throw Error("'" + file.path() + "' uses the rope scaling '" + type +
                    "', which isn't supported; linear and yarn are");
    if (factor > 0) rope.freq_scale = 1 / factor;
    if (type == "linear") {
        if (factor > 0) rope.scaling = RopeScaling::linear;
    } else {
        rope.scaling = RopeScaling::yarn;
        rope.ext_factor = number("rope.scaling.yarn_ext_factor", 1);
        rope.beta_fast = number("rope.scaling.yarn_beta_fast", 32);
        rope.beta_slow = number("rope.scaling.yarn_beta_slow", 1);
        if (rope.ext_factor != 0)
            rope.attn_factor =
                yarn_attention_factor(rope.freq_scale, number("rope.scaling.yarn_log_multiplier", 0));
    }
    rope.attn_factor *= number("rope.scaling.attn_factor", 1);
    return rope;
}

}  // namespace

float HyperParameters::attention_scale() const {
    return 1.0f / std::sqrt(float(head_dim));
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
    if (int(file.number(prefix + "rope.dimension_count").value_or(p.head_dim)) != p.head_dim)
        refuse("a rotation of part of the head isn't supported");
    if (p.head_dim < 1 || p.head_dim > 1024 || p.head_dim % 2 != 0)
        refuse("the head size " + std::to_string(p.head_dim) + " isn't supported");
    if (file.number(prefix + "expert_count").value_or(0) > 0) refuse("mixtures of experts aren't supported");

    p.rope = read_rope(file, prefix, p.context_length);
    return p;
}

void extend_context(HyperParameters& p, std::uint32_t context_length) {
    if (context_length == 0 || context_length <= p.context_length) {
        if (context_length > 0) p.context_length = context_length;
        return;
    }
    Rope& rope = p.rope;
    if (rope.scaling == RopeScaling::none)
        throw Error(
            "-c " + std::to_string(context_length) + " exceeds the " + std::to_string(p.context_length) +
                " tokens that the model was trained for, and its file has no rope scaling to extend them",
            Error::Kind::usage);
    const float before = rope.freq_scale;
    rope.freq_scale = std::min(before, float(rope.original_context) / float(context_length));
    if (rope.scaling == RopeScaling::yarn && rope.ext_factor != 0)
        rope.attn_factor *= yarn_attention_factor(rope.freq_scale, rope.log_multiplier) /
                            yarn_attention_factor(before, rope.log_multiplier);
    p.context_length = context_length;
}

}  // namespace holdfast
