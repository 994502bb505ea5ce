#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantized.hpp"
#include "model/compute.hpp"
#include "model/gguf_file.hpp"
#include "model/hyper_parameters.hpp"

namespace holdfast {

// y = W x + b. ggml's shapes: weight [inputs, outputs], bias [outputs].
struct Linear {
    ggml_tensor* weight = nullptr;      // in the mapped file
    const ggml_tensor* bias = nullptr;  // fp32, or null
    QuantizedMatrix quantized;          // what products use where the type has one; with many tokens …

    bool stays_quantized() const { return quantized && beats_fp32(quantized); }  // … only if this

    explicit operator bool() const { return weight != nullptr; }
    int inputs() const { return int(weight->ne[0]); }
    int outputs() const { return int(weight->ne[1]); }
    const float* bias_data() const {
        return bias == nullptr ? nullptr : static_cast<const float*>(bias->data);
    }
};

// What an architecture doesn't have is null, or a Linear without a matrix.
struct LayerWeights {
    ggml_tensor* attention_norm = nullptr;
    Linear query, key, value, output;
    ggml_tensor *query_norm = nullptr, *key_norm = nullptr;  // [head_dim] or [heads · head_dim]
    ggml_tensor* attention_post_norm = nullptr;
    ggml_tensor* feed_forward_norm = nullptr;
    Linear gate, up, down;
    Linear router;                                               // of experts [hidden, experts]
    ggml_tensor *gate_experts = nullptr, *up_experts = nullptr;  // [hidden, inner, experts]
    ggml_tensor* down_experts = nullptr;                         // [inner, hidden, experts]
    Linear shared_router, shared_gate, shared_up, shared_down;   // the expert that always takes part
    ggml_tensor* feed_forward_post_norm = nullptr;
};

// A GGUF model, its weights mapped.
class GgufModel {
  public:
    explicit GgufModel(const std::string& path, const ModelOptions& options = {});

    const std::string& path() const { return file_.path(); }
    const HyperParameters& parameters() const { return parameters_; }
    const ModelOptions& options() const { return options_; }
    std::size_t mapped_bytes() const { return file_.tensor_bytes(); }
    std::size_t quantized_bytes() const { return quantized_.size(); }  // copies in our own layout

    // 16 hex digits that tell models apart: a hash of the hyper-parameters, the tensor table, and the first
    // and last bytes of each tensor.
    const std::string& fingerprint() const { return fingerprint_; }

    // The embedding of one token, scaled as the layers expect it: `hidden` floats.
    void embed(int token, float* to) const;

    ggml_tensor* embedding = nullptr;     // [hidden, vocabulary]
    ggml_tensor* rope_factors = nullptr;  // [rotated / 2], or null
    ggml_tensor* output_norm = nullptr;
    Linear output;
    std::vector<LayerWeights> layers;

  private:
    void bind_tensors();
    LayerWeights bind_layer(class TensorBinder& bind, int layer);
    void quantize();
    std::vector<Linear*> matrices();

    std::string compute_fingerprint() const;

    GgufFile file_;
    ModelOptions options_;
    std::string fingerprint_;
    HyperParameters parameters_;
    ggml_context_ptr views_;  // of parts of fused matrices
    Buffer quantized_;
};

// One layer's matrices, expanded to fp32 panels: what products with many tokens use, but for those that stay
// quantised.
class ExpandedLayer {
  public:
    void expand(const GgufModel& model, int layer, Compute& compute);
    // The output projection of attention, in place of all others, whether products expand it or not.
    PackedMatrix expand_output(const GgufModel& model, int layer, Compute& compute);

    // Sets the matrices' shapes alone.
    void set_shapes(const LayerWeights& weights);
    // with_output: expand_output() is called too.
    static std::size_t bytes_for(const GgufModel& model, int threads, bool with_output);

    // Without panels where the layer has no matrix, or it stays quantised. Experts are multiplied as they are
    // in the file: all of a layer's at once in fp32 can be more than the model.
    PackedMatrix query, key, value, output, gate, up, down, shared_gate, shared_up, shared_down;

  private:
    struct Pair {
        PackedMatrix* packed;
        const Linear* linear;
    };
    std::vector<Pair> pairs(const LayerWeights& weights);
    std::vector<Pair> expanded(const LayerWeights& weights);
    void expand(std::span<const Pair> pairs, Compute& compute);
    static std::size_t elements(std::span<const Pair> pairs);     // floats of their panels
    static std::size_t row_scratch(std::span<const Pair> pairs);  // floats of a panel's 32 rows

    Buffer buffer_;
    Buffer scratch_;  // [threads][32, most inputs]
};

}  // namespace holdfast
