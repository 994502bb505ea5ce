#include "model_files.hpp"

#include <unistd.h>

#include <cmath>
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
        const int query = m.heads * m.head_dim, key = m.kv_heads * m.head_dim;
        matrix("token_embd", m.hidden, m.vocabulary, 1.0f);
        vector("output_norm.weight", m.hidden, 1, 0.1f);
        if (!m.tied) matrix("output", m.hidden, m.vocabulary, 1 / std::sqrt(float(m.hidden)));
        if (m.rope_factors) {
            ggml_tensor* factors = vector("rope_freqs.weight", m.head_dim / 2, 1, 0);
            for (int i = 0; i < m.head_dim / 2; ++i)
                static_cast<float*>(factors->data)[i] = i < m.head_dim / 4 ? 1.0f : 8.0f;
        }
        for (int l = 0; l < m.layers; ++l) {
            const std::string block = "blk." + std::to_string(l) + ".";
            vector(block + "attn_norm.weight", m.hidden, 1, 0.1f);
            vector(block + "ffn_norm.weight", m.hidden, 1, 0.1f);
            // Queries and keys large enough that attention prefers some tokens clearly.
            projection(block + "attn_q", m.hidden, query, 1.5f);
            projection(block + "attn_k", m.hidden, key, 1.5f);
            projection(block + "attn_v", m.hidden, key, 1);
            projection(block + "attn_output", query, m.hidden, 1);
            projection(block + "ffn_gate", m.hidden, m.feed_forward, 1);
            projection(block + "ffn_up", m.hidden, m.feed_forward, 1);
            projection(block + "ffn_down", m.feed_forward, m.hidden, 1);
        }
        gguf_write_to_file(gguf_.get(), path.c_str(), false);
    }

  private:
    void keys() {
        const RandomModel& m = model_;
        gguf_context* g = gguf_.get();
        gguf_set_val_str(g, "general.architecture", "llama");
        gguf_set_val_str(g, "general.name", "random");
        gguf_set_val_u32(g, "llama.block_count", std::uint32_t(m.layers));
        gguf_set_val_u32(g, "llama.embedding_length", std::uint32_t(m.hidden));
        gguf_set_val_u32(g, "llama.attention.head_count", std::uint32_t(m.heads));
        gguf_set_val_u32(g, "llama.attention.head_count_kv", std::uint32_t(m.kv_heads));
        gguf_set_val_u32(g, "llama.attention.key_length", std::uint32_t(m.head_dim));
        gguf_set_val_u32(g, "llama.attention.value_length", std::uint32_t(m.head_dim));
        gguf_set_val_u32(g, "llama.rope.dimension_count", std::uint32_t(m.head_dim));
        gguf_set_val_f32(g, "llama.rope.freq_base", 20000);
        gguf_set_val_u32(g, "llama.feed_forward_length", std::uint32_t(m.feed_forward));
        gguf_set_val_u32(g, "llama.context_length", std::uint32_t(m.context_length));
        gguf_set_val_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
        gguf_set_val_u32(g, "llama.vocab_size", std::uint32_t(m.vocabulary));
        if (!m.rope_scaling.empty()) {
            gguf_set_val_str(g, "llama.rope.scaling.type", m.rope_scaling.c_str());
            gguf_set_val_f32(g, "llama.rope.scaling.factor", 4);
            gguf_set_val_u32(g, "llama.rope.scaling.original_context_length", 1024);
        }
        gguf_set_val_str(g, "tokenizer.ggml.model", "none");
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

    void projection(const std::string& name, int inputs, int outputs, float gain) {
        matrix(name, inputs, outputs, gain / std::sqrt(float(inputs)));
        if (model_.biases) vector(name + ".bias", outputs, 0, 0.3f);
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
