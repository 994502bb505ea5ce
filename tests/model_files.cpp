#include "model_files.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

#include "ggml-cpp.h"
#include "gguf.h"

namespace holdfast::testing {

namespace {

class Writer {
  public:
    explicit Writer(const RandomModel& model)
        : model_(model),
          random_(model.seed),
          gguf_(gguf_init_empty()),
          context_(ggml_init({std::size_t(256) << 20, nullptr, false})) {}

    void write(const std::string& path) {
        keys();
        const RandomModel& m = model_;
        matrix("token_embd", m.hidden, m.vocabulary, is("gemma2") || is("gemma3") ? 0.1f : 1.0f);
        vector("output_norm.weight", m.hidden, 1, 0.1f);
        if (!m.tied) matrix("output", m.hidden, m.vocabulary, 1 / std::sqrt(float(m.hidden)));
        const int rotated = m.rotated > 0 ? m.rotated : m.head_dim;
        const auto factors = [&](const char* name, float large) {
            ggml_tensor* tensor = vector(name, rotated / 2, 1, 0);
            for (int i = 0; i < rotated / 2; ++i)
                static_cast<float*>(tensor->data)[i] = i < rotated / 4 ? 1.0f : large;
        };
        if (m.rope_factors) factors("rope_freqs.weight", 8);
        if (m.long_rope) {
            factors("rope_factors_long.weight", 12);
            factors("rope_factors_short.weight", 1.5f);
        }
        for (int l = 0; l < m.layers; ++l) layer("blk." + std::to_string(l) + ".");
        gguf_write_to_file(gguf_.get(), path.c_str(), false);
    }

  private:
    bool is(const char* architecture) const { return model_.architecture == architecture; }

    void layer(const std::string& block) {
        const RandomModel& m = model_;
        const int query = m.heads * m.head_dim, key = m.kv_heads * m.head_dim;
        const bool gemma = is("gemma2") || is("gemma3");
        if (!is("olmo2")) vector(block + "attn_norm.weight", m.hidden, 1, 0.1f);
        if (!is("olmo2")) vector(block + "ffn_norm.weight", m.hidden, 1, 0.1f);
        if (gemma || is("olmo2")) {
            vector(block + "post_attention_norm.weight", m.hidden, 1, 0.1f);
            vector(block + "post_ffw_norm.weight", m.hidden, 1, 0.1f);
        }
        if (m.fused) {
            matrix(block + "attn_qkv", m.hidden, query + 2 * key, m.gain / std::sqrt(float(m.hidden)));
            if (m.qkv_biases) vector(block + "attn_qkv.bias", query + 2 * key, 0, 0.3f);
        } else {
            projection(block + "attn_q", m.hidden, query, m.gain, m.qkv_biases);
            projection(block + "attn_k", m.hidden, key, m.gain, m.qkv_biases);
            projection(block + "attn_v", m.hidden, key, 1, m.qkv_biases);
        }
        if (is("qwen3") || is("qwen3moe") || is("gemma3")) {
            vector(block + "attn_q_norm.weight", m.head_dim, m.gain, 0.2f);
            vector(block + "attn_k_norm.weight", m.head_dim, m.gain, 0.2f);
        }
        if (is("olmo2")) {
            vector(block + "attn_q_norm.weight", query, m.gain, 0.2f);
            vector(block + "attn_k_norm.weight", key, m.gain, 0.2f);
        }
        projection(block + "attn_output", query, m.hidden, 1);
        if (m.experts > 0) {
            const int inner = m.expert_feed_forward > 0 ? m.expert_feed_forward : m.feed_forward;
            matrix(block + "ffn_gate_inp", m.hidden, m.experts, 3 / std::sqrt(float(m.hidden)));
            experts(block + "ffn_gate_exps", m.hidden, inner);
            experts(block + "ffn_up_exps", m.hidden, inner);
            experts(block + "ffn_down_exps", inner, m.hidden);
            if (m.shared_feed_forward > 0) {
                projection(block + "ffn_gate_shexp", m.hidden, m.shared_feed_forward, 1);
                projection(block + "ffn_up_shexp", m.hidden, m.shared_feed_forward, 1);
                projection(block + "ffn_down_shexp", m.shared_feed_forward, m.hidden, 1);
                if (is("qwen2moe")) vector(block + "ffn_gate_inp_shexp.weight", m.hidden, 0, 0.1f);
            }
            return;
        }
        if (is("phi3"))
            projection(block + "ffn_up", m.hidden, 2 * m.feed_forward, 1);
        else
            projection(block + "ffn_gate", m.hidden, m.feed_forward, 1);
        if (!is("phi3")) projection(block + "ffn_up", m.hidden, m.feed_forward, 1);
        projection(block + "ffn_down", m.feed_forward, m.hidden, 1);
    }

    void keys() {
        const RandomModel& m = model_;
        gguf_context* g = gguf_.get();
        const auto number = [&](const char* key, int value) {
            gguf_set_val_u32(g, (m.architecture + "." + key).c_str(), std::uint32_t(value));
        };
        const auto real = [&](const char* key, float value) {
            gguf_set_val_f32(g, (m.architecture + "." + key).c_str(), value);
        };
        gguf_set_val_str(g, "general.architecture", m.architecture.c_str());
        gguf_set_val_str(g, "general.name", "random");
        number("block_count", m.layers);
        number("embedding_length", m.hidden);
        number("attention.head_count", m.heads);
        number("attention.head_count_kv", m.kv_heads);
        number("attention.key_length", m.head_dim);
        number("attention.value_length", m.head_dim);
        number("rope.dimension_count", m.rotated > 0 ? m.rotated : m.head_dim);
        real("rope.freq_base", 20000);
        number("feed_forward_length", m.feed_forward);
        number("context_length", m.context_length);
        real("attention.layer_norm_rms_epsilon", 1e-5f);
        number("vocab_size", m.vocabulary);
        if (!m.rope_scaling.empty()) {
            gguf_set_val_str(g, (m.architecture + ".rope.scaling.type").c_str(), m.rope_scaling.c_str());
            real("rope.scaling.factor", 4);
            number("rope.scaling.original_context_length", 1024);
        }
        if (m.long_rope) {
            gguf_set_val_str(g, (m.architecture + ".rope.scaling.type").c_str(), "longrope");
            number("rope.scaling.original_context_length", 1024);
            real("rope.scaling.attn_factor", 1.19f);
        }
        if (m.sliding_window > 0) number("attention.sliding_window", m.sliding_window);
        const std::string pattern = m.architecture + ".attention.sliding_window_pattern";
        if (m.sliding_list) {
            std::vector<std::int8_t> list;
            for (int l = 0; l < m.layers; ++l) list.push_back(l % 3 != 1);
            gguf_set_arr_data(g, pattern.c_str(), GGUF_TYPE_BOOL, list.data(), list.size());
        } else if (m.sliding_period > 0) {
            number("attention.sliding_window_pattern", m.sliding_period);
        }
        if (m.final_soft_cap > 0) real("final_logit_softcapping", m.final_soft_cap);
        if (m.experts > 0) {
            number("expert_count", m.experts);
            number("expert_used_count", m.experts_used);
            if (m.expert_feed_forward > 0) number("expert_feed_forward_length", m.expert_feed_forward);
            if (m.shared_feed_forward > 0) number("expert_shared_feed_forward_length", m.shared_feed_forward);
        }
        if (is("granite") || is("granitemoe")) {
            real("logit_scale", 6);
            real("residual_scale", 0.4f);
            real("embedding_scale", 1.5f);
            real("attention.scale", 0.09f);
        }
        gguf_set_val_str(g, "tokenizer.ggml.model", "none");
        if (m.more_keys) m.more_keys(g);
    }

    ggml_tensor* vector(const std::string& name, int length, float mean, float deviation) {
        ggml_tensor* tensor = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, length);
        std::normal_distribution<float> normal(mean, deviation);
        for (int i = 0; i < length; ++i)
            static_cast<float*>(tensor->data)[i] = deviation > 0 ? normal(random_) : mean;
        add(tensor, name);
        return tensor;
    }

    void matrix(const std::string& name, int inputs, int outputs, float deviation) {
        std::vector<float> values(std::size_t(inputs) * std::size_t(outputs));
        std::normal_distribution<float> normal(0, deviation);
        for (float& value : values) value = normal(random_);
        ggml_tensor* tensor = ggml_new_tensor_2d(context_.get(), model_.type, inputs, outputs);
        ggml_quantize_chunk(model_.type, values.data(), tensor->data, 0, outputs, inputs, nullptr);
        add(tensor, name + ".weight");
    }

    void experts(const std::string& name, int inputs, int outputs) {
        const std::size_t count = std::size_t(model_.experts);
        std::vector<float> values(std::size_t(inputs) * std::size_t(outputs) * count);
        std::normal_distribution<float> normal(0, 1 / std::sqrt(float(inputs)));
        for (float& value : values) value = normal(random_);
        ggml_tensor* tensor =
            ggml_new_tensor_3d(context_.get(), model_.type, inputs, outputs, model_.experts);
        ggml_quantize_chunk(model_.type, values.data(), tensor->data, 0, outputs * model_.experts, inputs,
                            nullptr);
        add(tensor, name + ".weight");
    }

    void projection(const std::string& name, int inputs, int outputs, float gain, bool bias = false) {
        matrix(name, inputs, outputs, gain / std::sqrt(float(inputs)));
        if (model_.biases || bias) vector(name + ".bias", outputs, 0, 0.3f);
    }

    void add(ggml_tensor* tensor, const std::string& name) {
        ggml_set_name(tensor, name.c_str());
        gguf_add_tensor(gguf_.get(), tensor);
    }

    const RandomModel& model_;
    std::mt19937 random_;
    gguf_context_ptr gguf_;
    ggml_context_ptr context_;
};

}  // namespace

void write_random_model(const std::string& path, const RandomModel& model) {
    Writer(model).write(path);
}

void write_exact_copy(const std::string& from, const std::string& to) {
    ggml_context* loaded = nullptr;
    const gguf_context_ptr source(gguf_init_from_file(from.c_str(), {false, &loaded}));
    const ggml_context_ptr tensors(loaded);
    const gguf_context_ptr target(gguf_init_empty());
    gguf_set_kv(target.get(), source.get());
    std::size_t bytes = 0;
    for (std::int64_t i = 0; i < gguf_get_n_tensors(source.get()); ++i)
        bytes += std::size_t(ggml_nelements(ggml_get_tensor(loaded, gguf_get_tensor_name(source.get(), i)))) *
                     sizeof(float) +
                 1024;
    const ggml_context_ptr plain_tensors(ggml_init({bytes, nullptr, false}));
    for (std::int64_t i = 0; i < gguf_get_n_tensors(source.get()); ++i) {
        ggml_tensor* tensor = ggml_get_tensor(loaded, gguf_get_tensor_name(source.get(), i));
        ggml_tensor* plain = tensor;
        if (tensor->type != GGML_TYPE_F32) {
            plain = ggml_new_tensor(plain_tensors.get(), GGML_TYPE_F32, ggml_n_dims(tensor), tensor->ne);
            ggml_set_name(plain, tensor->name);
            ggml_get_type_traits(tensor->type)
                ->to_float(tensor->data, static_cast<float*>(plain->data), ggml_nelements(tensor));
        }
        gguf_add_tensor(target.get(), plain);
    }
    gguf_write_to_file(target.get(), to.c_str(), false);
}

std::string write_split_copy(const std::string& from, const std::string& name, int parts) {
    ggml_context* loaded = nullptr;
    const gguf_context_ptr source(gguf_init_from_file(from.c_str(), {false, &loaded}));
    const ggml_context_ptr tensors(loaded);
    const auto path = [&](int part) {
        char mark[32];
        std::snprintf(mark, sizeof mark, "-%05d-of-%05d.gguf", part + 1, parts);
        return temporary_path(name + mark);
    };
    const std::int64_t count = gguf_get_n_tensors(source.get());
    for (int part = 0; part < parts; ++part) {
        const gguf_context_ptr target(gguf_init_empty());
        if (part == 0) gguf_set_kv(target.get(), source.get());
        gguf_set_val_u16(target.get(), "split.no", std::uint16_t(part));
        gguf_set_val_u16(target.get(), "split.count", std::uint16_t(parts));
        gguf_set_val_i32(target.get(), "split.tensors.count", std::int32_t(count));
        for (std::int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i)
            gguf_add_tensor(target.get(), ggml_get_tensor(loaded, gguf_get_tensor_name(source.get(), i)));
        gguf_write_to_file(target.get(), path(part).c_str(), false);
    }
    return path(0);
}

void write_sentencepiece_vocabulary(const std::string& path, const std::string& chat_template) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<float> scores = {0, 0, 0};
    std::vector<std::int32_t> types = {2, 3, 3};  // unknown, control, control
    const auto add = [&](const std::string& token, float score, int type) {
        tokens.push_back(token);
        scores.push_back(score);
        types.push_back(type);
    };
    for (int byte = 0; byte < 256; ++byte) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", byte);
        add(name, 0, 6);
    }
    const std::string space = "\xe2\x96\x81";
    add(space, -1, 1);
    for (char c = '!'; c <= '~'; ++c) add(std::string(1, c), -2, 1);
    for (const char* word : {"th", "the", "he"}) {
        add(word, -0.5f, 1);
        add(space + word, -0.4f, 1);
    }
    const gguf_context_ptr gguf(gguf_init_empty());
    gguf_context* g = gguf.get();
    gguf_set_val_str(g, "general.architecture", "llama");
    gguf_set_val_u32(g, "llama.block_count", 1);
    gguf_set_val_u32(g, "llama.context_length", 64);
    gguf_set_val_u32(g, "llama.embedding_length", 32);
    gguf_set_val_u32(g, "llama.feed_forward_length", 32);
    gguf_set_val_u32(g, "llama.attention.head_count", 1);
    gguf_set_val_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
    gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(g, "tokenizer.ggml.add_space_prefix", true);
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
    if (!chat_template.empty()) gguf_set_val_str(g, "tokenizer.chat_template", chat_template.c_str());
    std::vector<const char*> names;
    for (const std::string& token : tokens) names.push_back(token.c_str());
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", names.data(), names.size());
    gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    gguf_write_to_file(g, path.c_str(), false);
}

std::string temporary_path(const std::string& name) {
    struct Folder {
        std::filesystem::path path =
            std::filesystem::temp_directory_path() / ("holdfast-test-" + std::to_string(getpid()));
        Folder() { std::filesystem::create_directories(path); }
        ~Folder() {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);
        }
    };
    static const Folder folder;
    return (folder.path / name).string();
}

}  // namespace holdfast::testing
