#include "model/model.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <set>
#include <utility>

#include "base/error.hpp"

namespace holdfast {

namespace {

// Looks tensors up, checks their shapes, and remembers which ones it was asked for.
class TensorBinder {
  public:
    explicit TensorBinder(const GgufFile& file) : file_(file) {}

    ggml_tensor* optional(const std::string& name, std::initializer_list<std::int64_t> shape) {
        ggml_tensor* tensor = file_.tensor(name);
        if (tensor == nullptr) return nullptr;
        used_.insert(name);
        std::int64_t expected[GGML_MAX_DIMS] = {1, 1, 1, 1};
        std::copy(shape.begin(), shape.end(), expected);
        if (!std::equal(expected, expected + GGML_MAX_DIMS, tensor->ne))
            throw Error("'" + file_.path() + "': tensor " + name + " has an unexpected shape");
        return tensor;
    }
    ggml_tensor* required(const std::string& name, std::initializer_list<std::int64_t> shape) {
        ggml_tensor* tensor = optional(name, shape);
        if (tensor == nullptr) throw Error("'" + file_.path() + "' lacks the tensor " + name);
        return tensor;
    }
    // Norms and biases take part in sums, which are fp32.
    ggml_tensor* vector(ggml_tensor* tensor) {
        if (tensor != nullptr && tensor->type != GGML_TYPE_F32)
            throw Error("'" + file_.path() + "': tensor " + tensor->name + " must be F32");
        return tensor;
    }
    // Matrices are expanded to fp32, so their type must be one that ggml can expand.
    ggml_tensor* matrix(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
        ggml_tensor* tensor = required(name, {inputs, outputs});
        if (tensor->type != GGML_TYPE_F32 && ggml_get_type_traits(tensor->type)->to_float == nullptr)
            throw Error("'" + file_.path() + "': tensor " + tensor->name + " has the type " +
                        ggml_type_name(tensor->type) + ", which can't be expanded");
        return tensor;
    }
    Linear linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
        Linear linear;
        linear.weight = matrix(name + ".weight", inputs, outputs);
        linear.mapped = linear.weight;
        linear.bias = vector(optional(name + ".bias", {outputs}));
        return linear;
    }
    // A tensor that nobody asked for would silently change what the model computes.
    void refuse_unused() const {
        for (const std::string& name : file_.tensor_names())
            if (!used_.contains(name))
                throw Error("'" + file_.path() + "': tensor " + name +
                            " isn't handled for this architecture");
    }

  private:
    const GgufFile& file_;
    std::set<std::string> used_;
};

// Row `row` of a matrix, as fp32.
void read_row(const ggml_tensor* tensor, std::int64_t row, float* to) {
    const void* from = static_cast<const std::byte*>(tensor->data) + std::size_t(row) * tensor->nb[1];
    if (tensor->type == GGML_TYPE_F32)
        std::memcpy(to, from, std::size_t(tensor->ne[0]) * sizeof(float));
    else
        ggml_get_type_traits(tensor->type)->to_float(from, to, tensor->ne[0]);
}

// Whether the CPU multiplies a matrix of this kind in a buffer type that lays weights out anew.
bool multiplies_in(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, const ggml_tensor* matrix) {
    ggml_context_ptr context(ggml_init({ggml_tensor_overhead() * 4, nullptr, true}));
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), matrix->type, matrix->ne[0], matrix->ne[1]);
    ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, matrix->ne[0], 8);
    ggml_tensor* product = ggml_mul_mat(context.get(), weight, input);
    ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(type, 0));
    weight->buffer = buffer.get();
    return ggml_backend_dev_supports_op(device, product);
}

}  // namespace

Model::Model(const std::string& path, std::uint32_t context_length)
    : file_(path), parameters_(read_hyper_parameters(file_)) {
    extend_context(parameters_, context_length);
    bind_tensors();
    repack();
}

void Model::bind_tensors() {
    const HyperParameters& p = parameters_;
    const std::int64_t hidden = p.hidden, query = std::int64_t(p.heads) * p.head_dim,
                       key = std::int64_t(p.kv_heads) * p.head_dim, inner = p.feed_forward;
    TensorBinder bind(file_);
    embedding = bind.matrix("token_embd.weight", hidden, p.vocabulary);
    output_norm = bind.vector(bind.required("output_norm.weight", {hidden}));
    rope_factors = bind.vector(bind.optional("rope_freqs.weight", {p.head_dim / 2}));
    if (file_.tensor("output.weight") != nullptr) {
        output = bind.linear("output", hidden, p.vocabulary);
    } else {
        output.weight = embedding;  // tied
        output.mapped = embedding;
    }
    for (int l = 0; l < p.layers; ++l) {
        const std::string block = "blk." + std::to_string(l) + ".";
        LayerWeights layer;
        layer.attention_norm = bind.vector(bind.required(block + "attn_norm.weight", {hidden}));
        layer.query = bind.linear(block + "attn_q", hidden, query);
        layer.key = bind.linear(block + "attn_k", hidden, key);
        layer.value = bind.linear(block + "attn_v", hidden, key);
        layer.output = bind.linear(block + "attn_output", query, hidden);
        layer.feed_forward_norm = bind.vector(bind.required(block + "ffn_norm.weight", {hidden}));
        layer.gate = bind.linear(block + "ffn_gate", hidden, inner);
        layer.up = bind.linear(block + "ffn_up", hidden, inner);
        layer.down = bind.linear(block + "ffn_down", inner, hidden);
        layers.push_back(layer);
    }
    bind.refuse_unused();
}

// Copies matrices into the CPU's own layouts where ggml has one for their type and this processor.
void Model::repack() {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto* extra_types =
        reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    if (extra_types == nullptr) return;
    ggml_backend_buffer_type_t* types = extra_types(device);
    if (types == nullptr) return;

    std::vector<Linear*> matrices = {&output};
    for (LayerWeights& layer : layers)
        for (Linear* linear :
             {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down})
            matrices.push_back(linear);
    repacked_.reset(ggml_init({ggml_tensor_overhead() * matrices.size(), nullptr, true}));
    for (; *types != nullptr; ++types) {
        std::vector<std::pair<Linear*, ggml_tensor*>> fitting;
        std::size_t bytes = 0;
        const std::size_t alignment = ggml_backend_buft_get_alignment(*types);
        for (Linear* linear : matrices) {
            if (linear->weight != linear->mapped || !multiplies_in(device, *types, linear->mapped)) continue;
            ggml_tensor* copy = ggml_new_tensor_2d(repacked_.get(), linear->mapped->type, linear->inputs(),
                                                   linear->outputs());
            fitting.emplace_back(linear, copy);
            bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(*types, copy), alignment);
        }
        if (fitting.empty()) continue;
        ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(*types, bytes));
        if (!buffer)
            throw Error("not enough memory to lay " + std::to_string(bytes >> 20) +
                        " MiB of weights out anew");
        auto* address = static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer.get()));
        for (auto& [linear, copy] : fitting) {
            ggml_backend_tensor_alloc(buffer.get(), copy, address);
            ggml_backend_tensor_set(copy, linear->mapped->data, 0, ggml_nbytes(linear->mapped));
            address += GGML_PAD(ggml_backend_buft_get_alloc_size(*types, copy), alignment);
            linear->weight = copy;
        }
        repacked_buffers_.push_back(std::move(buffer));
    }
}

std::size_t Model::repacked_bytes() const {
    std::size_t bytes = 0;
    for (const ggml_backend_buffer_ptr& buffer : repacked_buffers_)
        bytes += ggml_backend_buffer_get_size(buffer.get());
    return bytes;
}

std::string Model::fingerprint() const {
    const HyperParameters& p = parameters_;
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    const auto add = [&](const void* data, std::size_t bytes) { XXH3_64bits_update(&state, data, bytes); };
    add(p.architecture.name.c_str(), p.architecture.name.size() + 1);
    const double numbers[] = {double(p.layers),     double(p.hidden),      double(p.heads),
                              double(p.kv_heads),   double(p.head_dim),    double(p.feed_forward),
                              double(p.vocabulary), double(p.rms_epsilon), double(p.rope.freq_base)};
    add(numbers, sizeof numbers);
    constexpr std::size_t sample = 1024;
    for (const std::string& name : file_.tensor_names()) {
        const ggml_tensor* tensor = file_.tensor(name);
        add(name.c_str(), name.size() + 1);
        add(tensor->ne, sizeof tensor->ne);
        add(&tensor->type, sizeof tensor->type);
        const std::size_t bytes = ggml_nbytes(tensor), part = std::min(sample, bytes);
        add(tensor->data, part);
        add(static_cast<const std::byte*>(tensor->data) + (bytes - part), part);
    }
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(&state)));
    return hex;
}

void Model::embed(int token, float* to) const {
    read_row(embedding, token, to);
}

std::array<ExpandedLayer::Pair, 7> ExpandedLayer::pairs(const LayerWeights& w) {
    return {{{&query, &w.query},
             {&key, &w.key},
             {&value, &w.value},
             {&output, &w.output},
             {&gate, &w.gate},
             {&up, &w.up},
             {&down, &w.down}}};
}

std::size_t ExpandedLayer::set_shapes(const LayerWeights& weights) {
    std::size_t elements = 0;
    for (const auto& [packed, linear] : pairs(weights)) {
        *packed = {nullptr, linear->outputs(), linear->inputs()};
        elements += PackedMatrix::elements(linear->outputs(), linear->inputs());
    }
    return elements;
}

namespace {

// A thread needs room for the 32 rows of one panel.
std::size_t row_scratch(const LayerWeights& weights) {
    return std::size_t(32) *
           std::size_t(std::max({weights.query.inputs(), weights.output.inputs(), weights.down.inputs()}));
}

}  // namespace

void ExpandedLayer::expand(const Model& model, int layer, Compute& compute) {
    const LayerWeights& weights = model.layers[std::size_t(layer)];
    const std::size_t bytes = set_shapes(weights) * sizeof(float);
    buffer_.reserve(bytes);
    const std::size_t scratch = row_scratch(weights);
    const std::size_t scratch_bytes = scratch * sizeof(float) * std::size_t(compute.threads());
    scratch_.reserve(scratch_bytes);

    struct Panel {
        const Linear* linear;
        float* panels;
        int index;
    };
    std::vector<Panel> panels;
    float* next = buffer_.as<float>();
    for (const auto& [packed, linear] : pairs(weights)) {
        packed->panels = next;
        for (int i = 0; i < packed->panel_count(); ++i) panels.push_back({linear, next, i});
        next += PackedMatrix::elements(linear->outputs(), linear->inputs());
    }
    compute.parallel(int(panels.size()), [&](int i, int thread) {
        const Panel& panel = panels[std::size_t(i)];
        pack_panel(
            panel.panels, panel.index, panel.linear->outputs(), panel.linear->inputs(),
            [&](int row, float* to) { read_row(panel.linear->mapped, row, to); },
            scratch_.as<float>() + std::size_t(thread) * scratch);
    });
}

std::size_t ExpandedLayer::bytes_for(const Model& model, int threads) {
    const LayerWeights& first = model.layers.front();
    ExpandedLayer shapes;
    return (shapes.set_shapes(first) + row_scratch(first) * std::size_t(threads)) * sizeof(float);
}

}  // namespace holdfast
