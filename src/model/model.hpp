#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.hpp"
#include "kernels/matmul.hpp"
#include "model/compute.hpp"
#include "model/gguf_file.hpp"
#include "model/hyper_parameters.hpp"

namespace holdfast {

// y = W x + b. ggml's shapes: weight [inputs, outputs], bias [outputs].
struct Linear {
    ggml_tensor* weight =
        nullptr;  // what products with few tokens use: mapped, or repacked for this processor
    const ggml_tensor* mapped = nullptr;
    const ggml_tensor* bias = nullptr;  // fp32, or null

    int inputs() const { return int(mapped->ne[0]); }
    int outputs() const { return int(mapped->ne[1]); }
    const float* bias_data() const {
        return bias == nullptr ? nullptr : static_cast<const float*>(bias->data);
    }
};

struct LayerWeights {
    ggml_tensor* attention_norm = nullptr;
    Linear query, key, value, output;
    ggml_tensor* feed_forward_norm = nullptr;
    Linear gate, up, down;
};

// A GGUF model, its weights mapped.
class Model {
  public:
    // context_length: see extend_context(); 0 is the file's own.
    explicit Model(const std::string& path, std::uint32_t context_length = 0);

    const std::string& path() const { return file_.path(); }
    const HyperParameters& parameters() const { return parameters_; }
    std::size_t mapped_bytes() const { return file_.tensor_bytes(); }
    std::size_t repacked_bytes() const;  // copies in another layout

    // 16 hex digits that tell models apart: a hash of the hyper-parameters, the tensor table, and the first
    // and last bytes of each tensor.
    std::string fingerprint() const;

    // The embedding of one token: `hidden` floats.
    void embed(int token, float* to) const;

    ggml_tensor* embedding = nullptr;     // [hidden, vocabulary]
    ggml_tensor* rope_factors = nullptr;  // [head_dim / 2], or null
    ggml_tensor* output_norm = nullptr;
    Linear output;
    std::vector<LayerWeights> layers;

  private:
    void bind_tensors();
    void repack();

    GgufFile file_;
    HyperParameters parameters_;
    ggml_context_ptr repacked_;
    std::vector<ggml_backend_buffer_ptr> repacked_buffers_;
};

// One layer's matrices, expanded to fp32 panels: what products with many tokens use.
class ExpandedLayer {
  public:
    void expand(const Model& model, int layer, Compute& compute);

    // Sets the matrices' shapes alone; returns the floats that their panels take together.
    std::size_t set_shapes(const LayerWeights& weights);
    static std::size_t bytes_for(const Model& model, int threads);

    PackedMatrix query, key, value, output, gate, up, down;

  private:
    struct Pair {
        PackedMatrix* packed;
        const Linear* linear;
    };
    std::array<Pair, 7> pairs(const LayerWeights& weights);

    Buffer buffer_;
    Buffer scratch_;  // [threads][32, most inputs]
};

}  // namespace holdfast
