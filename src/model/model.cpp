#include "model/model.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <set>
#include <thread>
#include <utility>

#include "holdfast/error.hpp"
#include "base/hash.hpp"
#include "model/quantized_weights.hpp"

namespace holdfast {

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
        return multipliable(tensor);
    }
    // A matrix of a type that ggml's CPU backend multiplies and can expand to fp32.
    ggml_tensor* multipliable(ggml_tensor* tensor) {
        if ((tensor->type != GGML_TYPE_F32 && ggml_get_type_traits(tensor->type)->to_float == nullptr) ||
            ggml_get_type_traits_cpu(tensor->type)->vec_dot == nullptr)
            throw Error("'" + file_.path() + "': tensor " + tensor->name + " has the type " +
                        ggml_type_name(tensor->type) + ", which can't be multiplied");
        return tensor;
    }
    bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }
    // Rows [first, first + outputs) of a matrix that holds several, with their part of its bias.
    Linear slice(const Linear& fused, int first, int outputs, ggml_context* views) {
        Linear part;
        part.weight = ggml_view_2d(views, fused.weight, fused.inputs(), outputs, fused.weight->nb[1],
                                   std::size_t(first) * fused.weight->nb[1]);
        if (fused.bias != nullptr)
            part.bias = ggml_view_1d(views, const_cast<ggml_tensor*>(fused.bias), outputs,
                                     std::size_t(first) * sizeof(float));
        return part;
    }
    ggml_tensor* experts(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                         std::int64_t count) {
        return multipliable(required(name + ".weight", {inputs, outputs, count}));
    }
    Linear linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
        Linear linear;
        linear.weight = matrix(name + ".weight", inputs, outputs);
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

namespace {

// Row `row` of a matrix, as fp32.
void read_row(const ggml_tensor* tensor, std::int64_t row, float* to) {
    const void* from = static_cast<const std::byte*>(tensor->data) + std::size_t(row) * tensor->nb[1];
    if (tensor->type == GGML_TYPE_F32)
        std::memcpy(to, from, std::size_t(tensor->ne[0]) * sizeof(float));
    else
        ggml_get_type_traits(tensor->type)->to_float(from, to, tensor->ne[0]);
}

}  // namespace

GgufModel::GgufModel(const std::string& path, const ModelOptions& options)
    : file_(path), options_(options), parameters_(read_hyper_parameters(file_)) {
    apply_options(parameters_, options);
    bind_tensors();
    fingerprint_ = compute_fingerprint();
    quantize();
    file_.release_pages();  // most won't be touched again
}

void GgufModel::bind_tensors() {
    const HyperParameters& p = parameters_;
    TensorBinder bind(file_);
    views_.reset(ggml_init({ggml_tensor_overhead() * std::size_t(p.layers) * 12, nullptr, true}));
    embedding = bind.matrix("token_embd.weight", p.hidden, p.vocabulary);
    output_norm = bind.vector(bind.required("output_norm.weight", {p.hidden}));
    if (p.rope.scaling == RopeScaling::longrope) {
        ggml_tensor* longer = bind.vector(bind.optional("rope_factors_long.weight", {p.rotated / 2}));
        ggml_tensor* shorter = bind.vector(bind.optional("rope_factors_short.weight", {p.rotated / 2}));
        rope_factors = p.context_length > p.rope.original_context ? longer : shorter;
    } else {
        rope_factors = bind.vector(bind.optional("rope_freqs.weight", {p.rotated / 2}));
    }
    if (bind.has("output.weight")) {
        output = bind.linear("output", p.hidden, p.vocabulary);
    } else {
        output.weight = embedding;  // tied
    }
    for (int l = 0; l < p.layers; ++l) layers.push_back(bind_layer(bind, l));
    bind.refuse_unused();
}

LayerWeights GgufModel::bind_layer(TensorBinder& bind, int index) {
    const HyperParameters& p = parameters_;
    const Architecture& a = p.architecture;
    const int query = p.heads * p.head_dim, key = p.kv_heads * p.head_dim;
    const std::string block = "blk." + std::to_string(index) + ".";
    const auto norm = [&](bool present, const char* name, std::int64_t length) {
        return present ? bind.vector(bind.required(block + name + ".weight", {length})) : nullptr;
    };
    LayerWeights w;
    w.attention_norm = norm(a.norms_before, "attn_norm", p.hidden);
    if (bind.has(block + "attn_qkv.weight")) {
        const Linear fused = bind.linear(block + "attn_qkv", p.hidden, query + 2 * key);
        w.query = bind.slice(fused, 0, query, views_.get());
        w.key = bind.slice(fused, query, key, views_.get());
        w.value = bind.slice(fused, query + key, key, views_.get());
    } else {
        w.query = bind.linear(block + "attn_q", p.hidden, query);
        w.key = bind.linear(block + "attn_k", p.hidden, key);
        w.value = bind.linear(block + "attn_v", p.hidden, key);
    }
    const bool whole = a.head_norm == HeadNorm::whole_row;
    w.query_norm = norm(a.head_norm != HeadNorm::none, "attn_q_norm", whole ? query : p.head_dim);
    w.key_norm = norm(a.head_norm != HeadNorm::none, "attn_k_norm", whole ? key : p.head_dim);
    w.output = bind.linear(block + "attn_output", query, p.hidden);
    w.attention_post_norm = norm(a.norms_behind, "post_attention_norm", p.hidden);
    w.feed_forward_norm = norm(a.norms_before, "ffn_norm", p.hidden);
    w.feed_forward_post_norm = norm(a.norms_behind, "post_ffw_norm", p.hidden);

    if (p.experts > 0) {
        const int inner = p.expert_feed_forward > 0            ? p.expert_feed_forward
                          : a.name == "llama" || a.multipliers ? p.feed_forward
                                                               : p.feed_forward / p.experts_used;
        w.router = bind.linear(block + "ffn_gate_inp", p.hidden, p.experts);
        w.gate_experts = bind.experts(block + "ffn_gate_exps", p.hidden, inner, p.experts);
        w.up_experts = bind.experts(block + "ffn_up_exps", p.hidden, inner, p.experts);
        w.down_experts = bind.experts(block + "ffn_down_exps", inner, p.hidden, p.experts);
        if (bind.has(block + "ffn_up_shexp.weight")) {
            const int shared = p.shared_feed_forward > 0 ? p.shared_feed_forward : p.feed_forward;
            w.shared_gate = bind.linear(block + "ffn_gate_shexp", p.hidden, shared);
            w.shared_up = bind.linear(block + "ffn_up_shexp", p.hidden, shared);
            w.shared_down = bind.linear(block + "ffn_down_shexp", shared, p.hidden);
            if (a.shared_expert_gate) {
                w.shared_router.weight =
                    bind.vector(bind.required(block + "ffn_gate_inp_shexp.weight", {p.hidden}));
            }
        }
    } else if (a.fused) {
        const Linear fused = bind.linear(block + "ffn_up", p.hidden, 2 * p.feed_forward);
        w.gate = bind.slice(fused, 0, p.feed_forward, views_.get());
        w.up = bind.slice(fused, p.feed_forward, p.feed_forward, views_.get());
        w.down = bind.linear(block + "ffn_down", p.feed_forward, p.hidden);
    } else {
        w.gate = bind.linear(block + "ffn_gate", p.hidden, p.feed_forward);
        w.up = bind.linear(block + "ffn_up", p.hidden, p.feed_forward);
        w.down = bind.linear(block + "ffn_down", p.feed_forward, p.hidden);
    }
    return w;
}

// Those that few tokens are multiplied with.
std::vector<Linear*> GgufModel::matrices() {
    std::vector<Linear*> all = {&output};
    for (LayerWeights& w : layers)
        for (Linear* linear : {&w.query, &w.key, &w.value, &w.output, &w.gate, &w.up, &w.down, &w.shared_gate,
                               &w.shared_up, &w.shared_down})
            if (*linear) all.push_back(linear);
    return all;
}

// Copies matrices into the layout of our own products, where their type has one.
void GgufModel::quantize() {
    std::size_t bytes = 0;
    for (const Linear* linear : matrices()) bytes += quantized_shape(linear->weight).bytes();
    if (bytes == 0) return;
    quantized_ = Buffer(bytes);
    auto* next = quantized_.as<std::byte>();
    std::vector<std::pair<const ggml_tensor*, std::byte*>> copies;
    for (Linear* linear : matrices()) {
        QuantizedMatrix matrix = quantized_shape(linear->weight);
        if (matrix.bits == 0) continue;
        copies.emplace_back(linear->weight, next);
        matrix.groups = next;
        linear->quantized = matrix;
        next += matrix.bytes();
    }
    std::atomic<std::size_t> taken = 0;
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
        threads.emplace_back([&] {
            for (std::size_t i; (i = taken.fetch_add(1)) < copies.size();)
                store_quantized(copies[i].first, copies[i].second);
        });
}

std::string GgufModel::compute_fingerprint() const {
    const HyperParameters& p = parameters_;
    Hash hash;
    const auto add = [&](const void* data, std::size_t bytes) { hash.add(data, bytes); };
    add(p.architecture.name.c_str(), p.architecture.name.size() + 1);
    const double numbers[] = {double(p.layers),     double(p.hidden),      double(p.heads),
                              double(p.kv_heads),   double(p.head_dim),    double(p.feed_forward),
                              double(p.vocabulary), double(p.rms_epsilon), double(p.rope.freq_base)};
    add(numbers, sizeof numbers);
    // Of models that have them, so that others keep their fingerprint.
    const double more[] = {double(p.attention_soft_cap), double(p.final_soft_cap), double(p.embedding_scale),
                           double(p.residual_scale),     double(p.logit_scale),    double(p.sliding_window),
                           double(p.experts_used),       double(p.rotated)};
    const double usual[] = {0, 0, 1, 1, 1, 0, 0, double(p.head_dim)};
    if (!std::equal(std::begin(more), std::end(more), usual)) {
        add(more, sizeof more);
        for (int l = 0; l < p.layers; ++l) {
            const bool slides = p.slides(l);
            add(&slides, sizeof slides);
        }
    }
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
    return hash.hex();
}

void GgufModel::embed(int token, float* to) const {
    read_row(embedding, token, to);
    if (parameters_.embedding_scale != 1)
        for (int i = 0; i < parameters_.hidden; ++i) to[i] *= parameters_.embedding_scale;
}

std::vector<ExpandedLayer::Pair> ExpandedLayer::pairs(const LayerWeights& w) {
    std::vector<Pair> present;
    for (const Pair& pair :
         {Pair{&query, &w.query}, Pair{&key, &w.key}, Pair{&value, &w.value}, Pair{&output, &w.output},
          Pair{&gate, &w.gate}, Pair{&up, &w.up}, Pair{&down, &w.down}, Pair{&shared_gate, &w.shared_gate},
          Pair{&shared_up, &w.shared_up}, Pair{&shared_down, &w.shared_down}})
        if (*pair.linear) present.push_back(pair);
    return present;
}

std::vector<ExpandedLayer::Pair> ExpandedLayer::expanded(const LayerWeights& weights) {
    std::vector<Pair> chosen = pairs(weights);
    std::erase_if(chosen, [&](const Pair& pair) { return pair.linear->stays_quantized(); });
    return chosen;
}

void ExpandedLayer::set_shapes(const LayerWeights& weights) {
    for (const auto& [packed, linear] : pairs(weights))
        *packed = {nullptr, linear->outputs(), linear->inputs()};
}

std::size_t ExpandedLayer::elements(std::span<const Pair> pairs) {
    std::size_t sum = 0;
    for (const auto& [packed, linear] : pairs)
        sum += PackedMatrix::elements(linear->outputs(), linear->inputs());
    return sum;
}

std::size_t ExpandedLayer::row_scratch(std::span<const Pair> pairs) {
    int most = 0;
    for (const auto& [packed, linear] : pairs) most = std::max(most, linear->inputs());
    return std::size_t(32) * std::size_t(most);
}

void ExpandedLayer::expand(const GgufModel& model, int layer, Compute& compute) {
    expand(expanded(model.layers[std::size_t(layer)]), compute);
}

PackedMatrix ExpandedLayer::expand_output(const GgufModel& model, int layer, Compute& compute) {
    const Pair pair{&output, &model.layers[std::size_t(layer)].output};
    expand({&pair, 1}, compute);
    return output;
}

void ExpandedLayer::expand(std::span<const Pair> pairs, Compute& compute) {
    buffer_.reserve(elements(pairs) * sizeof(float));
    const std::size_t scratch = row_scratch(pairs);
    scratch_.reserve(scratch * sizeof(float) * std::size_t(compute.threads()));

    struct Panel {
        const Linear* linear;
        float* panels;
        int index;
    };
    std::vector<Panel> panels;
    float* next = buffer_.as<float>();
    for (const auto& [packed, linear] : pairs) {
        *packed = {next, linear->outputs(), linear->inputs()};
        for (int i = 0; i < packed->panel_count(); ++i) panels.push_back({linear, next, i});
        next += PackedMatrix::elements(linear->outputs(), linear->inputs());
    }
    compute.parallel(int(panels.size()), [&](int i, int thread) {
        const Panel& panel = panels[std::size_t(i)];
        pack_panel(
            panel.panels, panel.index, panel.linear->outputs(), panel.linear->inputs(),
            [&](int row, float* to) { read_row(panel.linear->weight, row, to); },
            scratch_.as<float>() + std::size_t(thread) * scratch);
    });
}

std::size_t ExpandedLayer::bytes_for(const GgufModel& model, int threads, bool with_output) {
    ExpandedLayer shapes;
    const std::vector<Pair> pairs = shapes.expanded(model.layers.front());
    std::size_t panels = elements(pairs), scratch = row_scratch(pairs);
    if (with_output) {
        const Pair pair{&shapes.output, &model.layers.front().output};
        panels = std::max(panels, elements({&pair, 1}));
        scratch = std::max(scratch, row_scratch({&pair, 1}));
    }
    return (panels + scratch * std::size_t(threads)) * sizeof(float);
}

}  // namespace holdfast
