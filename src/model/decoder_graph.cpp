#include "model/decoder_graph.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "holdfast/error.hpp"
#include "model/product_node.hpp"

namespace holdfast {

namespace {

// Builds the nodes of layers; what its nodes refer to lives as long as the graph.
class Builder {
  public:
    // nodes: room for products_of_layer a layer, and one more for logits; rows: for their quantised
    // inputs.
    Builder(ggml_context* context, const GgufModel& model, ProductNode* nodes, std::byte* rows)
        : context_(context), model_(model), next_node_(nodes), rows_(rows) {}

    ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight) const {
        return ggml_mul(context_, ggml_rms_norm(context_, x, model_.parameters().rms_epsilon), weight);
    }

    // x [inputs, tokens] times each of these.
    std::array<ggml_tensor*, ProductNode::most_factors> multiply(std::initializer_list<Factor> factors,
                                                                 ggml_tensor* x) {
        std::array<ggml_tensor*, ProductNode::most_factors> products = {};
        for (const Factor::Way way : {Factor::Way::quantized, Factor::Way::expanded})
            multiply_in_one_node(way, factors, x, products.data());
        ggml_tensor** product = products.data();
        for (const Factor& factor : factors) {
            if (factor.way() == Factor::Way::ggml) *product = ggml_product(*factor.linear, x);
            ++product;
        }
        return products;
    }
    ggml_tensor* multiply(const Factor& factor, ggml_tensor* x) { return multiply({factor}, x)[0]; }
    ggml_tensor* multiply(const Linear& linear, ggml_tensor* x) { return multiply({&linear, nullptr}, x); }

    // x [head_dim · heads, tokens] → [head_dim, heads, tokens], normalized where the model does that,
    // rotated.
    ggml_tensor* head_states(ggml_tensor* x, int heads, ggml_tensor* norm_weight, int layer,
                             ggml_tensor* positions) const {
        const HyperParameters& p = model_.parameters();
        if (p.architecture.head_norm == HeadNorm::whole_row) x = norm(x, norm_weight);
        x = ggml_reshape_3d(context_, x, p.head_dim, heads, positions->ne[0]);
        if (p.architecture.head_norm == HeadNorm::each_head) x = norm(x, norm_weight);
        return p.rotates(layer) ? rotate(x, layer, positions) : x;
    }

    // x [head_dim, heads, tokens]
    ggml_tensor* rotate(ggml_tensor* x, int layer, ggml_tensor* positions) const {
        const HyperParameters& p = model_.parameters();
        const Rope& r = p.rope_of(layer);
        return ggml_rope_ext(context_, x, positions, p.slides(layer) ? nullptr : model_.rope_factors,
                             p.rotated, p.architecture.rope_mode, int(r.original_context), r.freq_base,
                             r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
    }

    // → hidden, updated, or the node that fills the cache if nothing else is wanted.
    // expanded: for many tokens; null for the weights as they are.
    ggml_tensor* layer(int index, ggml_tensor* hidden, ggml_tensor* positions, AttentionCall* call,
                       const ExpandedLayer* expanded, LayerGraph::Result wanted) {
        const HyperParameters& p = model_.parameters();
        const LayerWeights& w = model_.layers[std::size_t(index)];
        const auto factor = [&](const Linear& linear, PackedMatrix ExpandedLayer::*member) {
            return Factor{&linear,
                          expanded == nullptr || linear.stays_quantized() ? nullptr : &(expanded->*member)};
        };
        const auto before = [&](ggml_tensor* weight) {
            return weight == nullptr ? hidden : norm(hidden, weight);
        };
        const auto add = [&](ggml_tensor* x, ggml_tensor* post_norm) {
            if (post_norm != nullptr) x = norm(x, post_norm);
            if (p.residual_scale != 1) x = ggml_scale(context_, x, p.residual_scale);
            hidden = ggml_add_inplace(context_, hidden, x);
        };
        const auto feed_forward = [&](ggml_tensor* gate, ggml_tensor* up) {
            ggml_tensor* product = p.architecture.activation == Activation::gelu
                                       ? ggml_geglu_split(context_, gate, up)
                                       : ggml_swiglu_split(context_, gate, up);
            product->view_src = gate->view_src == nullptr ? gate : gate->view_src;  // in the gate's place
            product->view_offs = gate->view_offs;
            return product;
        };

        ggml_tensor* x = before(w.attention_norm);
        auto [query, key, value] =
            multiply({factor(w.query, &ExpandedLayer::query), factor(w.key, &ExpandedLayer::key),
                      factor(w.value, &ExpandedLayer::value)},
                     x);
        query = head_states(query, p.heads, w.query_norm, index, positions);
        key = head_states(key, p.kv_heads, w.key_norm, index, positions);
        ggml_tensor* stored = store_node(context_, call, query, key, value);
        if (wanted == LayerGraph::Result::cache) return stored;
        x = attention_nodes(context_, call, query, stored);
        add(multiply(factor(w.output, &ExpandedLayer::output), x), w.attention_post_norm);

        x = before(w.feed_forward_norm);
        ggml_tensor* result = nullptr;
        if (w.router) {
            result = experts(w, x);
            if (w.shared_up) {
                const auto product = multiply({factor(w.shared_gate, &ExpandedLayer::shared_gate),
                                               factor(w.shared_up, &ExpandedLayer::shared_up)},
                                              x);
                ggml_tensor* shared = multiply(factor(w.shared_down, &ExpandedLayer::shared_down),
                                               feed_forward(product[0], product[1]));
                if (w.shared_router)
                    shared = ggml_mul(context_, shared, ggml_sigmoid(context_, multiply(w.shared_router, x)));
                result = ggml_add(context_, result, shared);
            }
        } else {
            const auto product =
                multiply({factor(w.gate, &ExpandedLayer::gate), factor(w.up, &ExpandedLayer::up)}, x);
            result = multiply(factor(w.down, &ExpandedLayer::down), feed_forward(product[0], product[1]));
        }
        add(result, w.feed_forward_post_norm);
        return hidden;
    }

    ggml_tensor* embed(ggml_tensor* ids) const {
        ggml_tensor* hidden = ggml_get_rows(context_, model_.embedding, ids);
        const float scale = model_.parameters().embedding_scale;
        return scale == 1 ? hidden : ggml_scale(context_, hidden, scale);
    }

    ggml_tensor* logits(ggml_tensor* hidden) {
        const HyperParameters& p = model_.parameters();
        ggml_tensor* x = multiply(model_.output, norm(hidden, model_.output_norm));
        if (p.logit_scale != 1) x = ggml_scale(context_, x, p.logit_scale);
        if (p.final_soft_cap != 0) {
            x = ggml_tanh(context_, ggml_scale(context_, x, 1 / p.final_soft_cap));
            x = ggml_scale(context_, x, p.final_soft_cap);
        }
        return x;
    }

  private:
    // Those of the factors that are multiplied in this way.
    void multiply_in_one_node(Factor::Way way, std::initializer_list<Factor> factors, ggml_tensor* x,
                              ggml_tensor** products) {
        const auto chosen = [&](const Factor& factor) { return factor.way() == way; };
        if (std::none_of(factors.begin(), factors.end(), chosen)) return;
        ProductNode& node = *next_node_++;
        for (const Factor& factor : factors)
            if (chosen(factor)) node.add(factor);
        ggml_tensor* all = node.build(context_, x, rows_);
        std::int64_t begin = 0;
        for (const Factor& factor : factors) {
            ggml_tensor*& product = *products++;
            if (!chosen(factor)) continue;
            const std::int64_t width = factor.linear->outputs();
            product = ggml_view_2d(context_, all, width, x->ne[1], std::size_t(width) * sizeof(float),
                                   std::size_t(begin * x->ne[1]) * sizeof(float));
            begin += width;
        }
    }

    ggml_tensor* ggml_product(const Linear& linear, ggml_tensor* x) const {
        ggml_tensor* product = ggml_mul_mat(context_, linear.weight, x);
        return linear.bias == nullptr ? product
                                      : ggml_add(context_, product, const_cast<ggml_tensor*>(linear.bias));
    }

    // The mixture's best experts for each token, weighted by the router.
    ggml_tensor* experts(const LayerWeights& w, ggml_tensor* x) {
        const HyperParameters& p = model_.parameters();
        const std::int64_t tokens = x->ne[1], used = p.experts_used;
        ggml_tensor* shares = ggml_soft_max(context_, multiply(w.router, x));
        ggml_tensor* chosen = ggml_argsort_top_k(context_, shares, int(used));
        ggml_tensor* weights =
            ggml_get_rows(context_, ggml_reshape_3d(context_, shares, 1, p.experts, tokens), chosen);
        if (p.architecture.expert_weights_sum_to_1) {
            constexpr float least = 0x1p-14f;  // against division by zero
            weights = ggml_reshape_2d(context_, weights, used, tokens);
            weights = ggml_div(context_, weights,
                               ggml_clamp(context_, ggml_sum_rows(context_, weights), least, INFINITY));
            weights = ggml_reshape_3d(context_, weights, 1, used, tokens);
        }

        x = ggml_reshape_3d(context_, x, p.hidden, 1, tokens);
        ggml_tensor* up = ggml_mul_mat_id(context_, w.up_experts, x, chosen);  // [inner, used, tokens]
        ggml_tensor* gate = ggml_mul_mat_id(context_, w.gate_experts, x, chosen);
        x = ggml_mul_mat_id(context_, w.down_experts, ggml_swiglu_split(context_, gate, up), chosen);
        x = ggml_mul(context_, x, weights);
        ggml_tensor* sum = nullptr;
        for (std::int64_t i = 0; i < used; ++i) {
            ggml_tensor* one =
                ggml_view_2d(context_, x, p.hidden, tokens, x->nb[2], std::size_t(i) * x->nb[1]);
            sum = sum == nullptr ? one : ggml_add(context_, sum, one);
        }
        return used == 1 ? ggml_cont(context_, sum) : sum;
    }

    ggml_context* context_;
    const GgufModel& model_;
    ProductNode* next_node_;
    std::byte* rows_;
};

constexpr int products_of_layer = 9;  // at most, if queries, keys and values are of different types

// What products of the model's longest inputs need.
std::size_t quantized_row_bytes(const GgufModel& model, int tokens, int threads) {
    const auto bytes = [&](const Linear& linear) {
        return linear.quantized ? ProductNode::row_bytes(tokens, linear.inputs(), threads) : 0;
    };
    std::size_t most = bytes(model.output);
    for (const LayerWeights& w : model.layers)
        for (const Linear* linear : {&w.query, &w.key, &w.value, &w.output, &w.gate, &w.up, &w.down,
                                     &w.shared_gate, &w.shared_up, &w.shared_down, &w.router})
            most = std::max(most, bytes(*linear));
    return most;
}

// An upper bound.
int nodes_of_layer(const GgufModel& model) {
    return 64 + 2 * model.parameters().experts_used;
}

ggml_context_ptr graph_context(int nodes) {
    const std::size_t bytes = ggml_tensor_overhead() * std::size_t(nodes + 16) +
                              ggml_graph_overhead_custom(std::size_t(nodes), false);
    return ggml_context_ptr(ggml_init({bytes, nullptr, true}));
}

// A tensor whose data is ours.
ggml_tensor* external(ggml_context* context, ggml_type type, std::int64_t ne0, std::int64_t ne1, void* data) {
    ggml_tensor* tensor = ggml_new_tensor_2d(context, type, ne0, ne1);
    tensor->data = data;
    return tensor;
}

ggml_gallocr_ptr graph_allocator() {
    return ggml_gallocr_ptr(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
}

void allocate(const ggml_gallocr_ptr& allocator, ggml_cgraph* graph) {
    if (!ggml_gallocr_alloc_graph(allocator.get(), graph))
        throw Error("not enough memory to compute; a smaller context needs less");
}

// The graph of one layer over `tokens` tokens with expanded weights.
struct OneLayer {
    ggml_context_ptr context;
    ggml_cgraph* graph = nullptr;
    ProductNode products[products_of_layer];

    OneLayer(const GgufModel& model, const ExpandedLayer& weights, int layer, AttentionCall* call,
             float* hidden, std::int32_t* positions, int tokens, std::byte* rows, LayerGraph::Result wanted)
        : context(graph_context(nodes_of_layer(model))) {
        ggml_tensor* h = external(context.get(), GGML_TYPE_F32, model.parameters().hidden, tokens, hidden);
        ggml_tensor* p = external(context.get(), GGML_TYPE_I32, tokens, 1, positions);
        ggml_tensor* result =
            Builder(context.get(), model, products, rows).layer(layer, h, p, call, &weights, wanted);
        graph = ggml_new_graph_custom(context.get(), std::size_t(nodes_of_layer(model)), false);
        ggml_build_forward_expand(graph, result);
    }
};

// What a call knows from the model.
void set_model(AttentionCall& call, const HyperParameters& p, int layer) {
    call.layer = layer;
    call.heads = p.heads;
    call.scale = p.attention_scale;
    call.soft_cap = p.attention_soft_cap;
    call.sliding_window = p.slides(layer) ? p.sliding_window : 0;
}

// What tokens from `position` on no longer see of a sliding layer is freed.
void drop_unseen(RaggedCache& cache, const AttentionCall& call, std::uint32_t position) {
    if (call.sliding_window > 0 && position + 1 > call.sliding_window)
        cache.drop_before(call.layer, position + 1 - call.sliding_window);
}

}  // namespace

struct LayerGraph::State {
    const GgufModel& model;
    Compute& compute;
    ggml_gallocr_ptr allocator = graph_allocator();
    AttentionScratch scratch = {};
    std::vector<std::int32_t> positions = {};
    Buffer rows = {};
};

LayerGraph::LayerGraph(const GgufModel& model, Compute& compute) : state_(new State{model, compute}) {}
LayerGraph::~LayerGraph() = default;

void LayerGraph::run(const ExpandedLayer& weights, int layer, float* hidden, int tokens,
                     std::uint32_t first_position, RaggedCache& cache, float* queries, Result result) {
    State& state = *state_;
    const HyperParameters& p = state.model.parameters();
    state.positions.resize(std::size_t(tokens));
    std::iota(state.positions.begin(), state.positions.end(), std::int32_t(first_position));
    AttentionCall call;
    set_model(call, p, layer);
    call.cache = &cache;
    call.queries = queries;
    drop_unseen(cache, call, first_position);
    cache.append(layer, first_position, std::uint32_t(tokens));
    call.scratch = &state.scratch;
    state.scratch.prepare(call, tokens, state.compute.threads());

    state.rows.reserve(quantized_row_bytes(state.model, tokens, state.compute.threads()));
    const OneLayer one(state.model, weights, layer, &call, hidden, state.positions.data(), tokens,
                       state.rows.as<std::byte>(), result);
    allocate(state.allocator, one.graph);
    state.compute.run(one.graph);
}

std::size_t LayerGraph::bytes_for(const GgufModel& model, int tokens, int threads) {
    const HyperParameters& p = model.parameters();
    AttentionCall call;
    call.heads = p.heads;
    // The graph is measured, not run: its data need not exist.
    ExpandedLayer shapes;
    shapes.set_shapes(model.layers.front());
    float hidden = 0;
    std::int32_t position = 0;
    const OneLayer one(model, shapes, 0, &call, &hidden, &position, tokens, nullptr,
                       Result::cache_and_hidden);
    const ggml_gallocr_ptr allocator = graph_allocator();
    std::size_t bytes = 0;
    ggml_gallocr_reserve_n_size(allocator.get(), one.graph, nullptr, nullptr, &bytes);
    return bytes + quantized_row_bytes(model, tokens, threads) +
           AttentionScratch::bytes_for(p.heads, p.kv_heads, p.head_dim, tokens, threads);
}

struct DecoderGraph::State {
    const GgufModel& model;
    Compute& compute;
    ggml_gallocr_ptr allocator = graph_allocator();
    AttentionScratch scratch = {};

    // The graph of the last run: reused while the number of tokens stays the same.
    ggml_context_ptr context = {};
    ggml_cgraph* graph = nullptr;
    std::int64_t tokens = 0;
    ggml_tensor* ids = nullptr;
    ggml_tensor* positions = nullptr;
    ggml_tensor* result = nullptr;
    std::vector<ggml_tensor*> hidden = {};        // behind each layer, if they are to be recorded
    std::vector<float> queries = {};              // of a recorded run [layers, tokens, heads, head_dim]
    std::unique_ptr<AttentionCall[]> calls = {};  // by layer
    std::unique_ptr<ProductNode[]> products = {};
    std::size_t product_count = 0;
    Buffer quantized_rows = {};

    void build(std::int64_t count, bool record_hidden) {
        const HyperParameters& p = model.parameters();
        const int nodes = nodes_of_layer(model) * (p.layers + 1);
        tokens = 0;  // nothing to reuse if this throws
        context = graph_context(nodes);
        ids = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, count);
        positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, count);
        ggml_set_input(ids);
        ggml_set_input(positions);
        product_count = std::size_t(products_of_layer * p.layers + 1);
        products = std::make_unique<ProductNode[]>(product_count);
        quantized_rows.reserve(quantized_row_bytes(model, int(count), compute.threads()));
        Builder builder(context.get(), model, products.get(), quantized_rows.as<std::byte>());
        hidden.clear();
        ggml_tensor* state = builder.embed(ids);
        for (int l = 0; l < p.layers; ++l) {
            AttentionCall& call = calls[std::size_t(l)];
            set_model(call, p, l);
            call.split = true;
            call.scratch = &scratch;
            state = builder.layer(l, state, positions, &call, nullptr, LayerGraph::Result::cache_and_hidden);
            if (record_hidden) {  // a copy: the next layer adds to it in place
                hidden.push_back(ggml_dup(context.get(), state));
                ggml_set_output(hidden.back());
            }
        }
        state = ggml_view_2d(context.get(), state, p.hidden, 1, state->nb[1],
                             std::size_t(count - 1) * state->nb[1]);
        result = builder.logits(state);
        ggml_set_output(result);
        graph = ggml_new_graph_custom(context.get(), std::size_t(nodes), false);
        for (ggml_tensor* copy : hidden)
            ggml_build_forward_expand(graph, copy);  // each before the next layer
        ggml_build_forward_expand(graph, result);
        allocate(allocator, graph);
        tokens = count;
    }
};

DecoderGraph::DecoderGraph(const GgufModel& model, Compute& compute) : state_(new State{model, compute}) {
    state_->calls = std::make_unique<AttentionCall[]>(std::size_t(model.parameters().layers));
}
DecoderGraph::~DecoderGraph() = default;

std::span<const float> DecoderGraph::run(std::span<const int> tokens, RaggedCache& cache,
                                         Recording recording) {
    State& state = *state_;
    const std::uint32_t first = cache.next_position();
    if (state.tokens != std::int64_t(tokens.size()) || state.hidden.empty() != (recording.hidden == nullptr))
        state.build(std::int64_t(tokens.size()), recording.hidden != nullptr);
    const std::size_t count = tokens.size(), layers = std::size_t(cache.layers()),
                      row = std::size_t(state.model.parameters().heads * cache.head_dim());
    if (recording.queries != nullptr) state.queries.resize(layers * row * count);
    for (int l = 0; l < cache.layers(); ++l) {
        AttentionCall& call = state.calls[std::size_t(l)];
        call.cache = &cache;
        call.queries =
            recording.queries == nullptr ? nullptr : state.queries.data() + std::size_t(l) * row * count;
        drop_unseen(cache, call, first);
        cache.append(l, first, std::uint32_t(tokens.size()));
        state.scratch.prepare(call, int(tokens.size()), state.compute.threads());
    }
    cache.set_next_position(first + std::uint32_t(tokens.size()));
    std::copy(tokens.begin(), tokens.end(), static_cast<std::int32_t*>(state.ids->data));
    auto* positions = static_cast<std::int32_t*>(state.positions->data);
    std::iota(positions, positions + tokens.size(), std::int32_t(first));
    for (std::size_t i = 0; i < state.product_count; ++i) state.products[i].start_again();
    state.compute.run(state.graph);
    for (std::size_t l = 0; l < layers && recording.queries != nullptr; ++l)
        std::copy_n(state.queries.data() + ((l + 1) * count - recording.tokens) * row, recording.tokens * row,
                    recording.queries + l * recording.tokens * row);
    for (std::size_t l = 0; l < state.hidden.size(); ++l) {
        const std::size_t width = std::size_t(state.hidden[l]->ne[0]);
        std::copy_n(static_cast<const float*>(state.hidden[l]->data) + (count - 1) * width, width,
                    recording.hidden + l * width);
    }
    return {static_cast<const float*>(state.result->data), std::size_t(state.result->ne[0])};
}

Rotation measure_rotation(const GgufModel& model, Compute& compute, int layer) {
    const HyperParameters& p = model.parameters();
    Rotation rotation;
    if (!p.rotates(layer)) return rotation;
    rotation.neighbours = p.architecture.rope_mode == GGML_ROPE_TYPE_NORMAL;
    const int pairs = p.rotated / 2;
    const auto first = [&](int i) { return std::size_t(rotation.neighbours ? 2 * i : i); };
    const auto second = [&](int i) { return std::size_t(rotation.neighbours ? 2 * i + 1 : i + pairs); };
    // Each pair is (1, 0), so that turning it shows its angle.
    std::vector<float> vector(std::size_t(p.head_dim));
    for (int i = 0; i < pairs; ++i) vector[first(i)] = 1;
    std::int32_t position = 1;
    const ggml_context_ptr context = graph_context(nodes_of_layer(model));
    ggml_tensor* positions = external(context.get(), GGML_TYPE_I32, 1, 1, &position);
    ggml_tensor* input = external(context.get(), GGML_TYPE_F32, p.head_dim, 1, vector.data());
    ggml_tensor* result = Builder(context.get(), model, nullptr, nullptr).rotate(input, layer, positions);
    ggml_set_output(result);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), std::size_t(nodes_of_layer(model)), false);
    ggml_build_forward_expand(graph, result);
    const ggml_gallocr_ptr allocator = graph_allocator();
    allocate(allocator, graph);
    compute.run(graph);
    const auto* turned = static_cast<const float*>(result->data);
    for (int i = 0; i < pairs; ++i) {
        const double x = double(turned[first(i)]), y = double(turned[second(i)]);
        rotation.frequencies.push_back(std::atan2(y, x));
        rotation.magnitude = std::hypot(x, y);  // the same for every pair
    }
    return rotation;
}

std::vector<float> final_logits(const GgufModel& model, Compute& compute, float* hidden) {
    const ggml_context_ptr context = graph_context(nodes_of_layer(model));
    ggml_tensor* input = external(context.get(), GGML_TYPE_F32, model.parameters().hidden, 1, hidden);
    ProductNode node;
    const Buffer rows(quantized_row_bytes(model, 1, compute.threads()));
    ggml_tensor* result = Builder(context.get(), model, &node, rows.as<std::byte>()).logits(input);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), std::size_t(nodes_of_layer(model)), false);
    ggml_build_forward_expand(graph, result);
    const ggml_gallocr_ptr allocator = graph_allocator();
    allocate(allocator, graph);
    compute.run(graph);
    const auto* data = static_cast<const float*>(result->data);
    return {data, data + result->ne[0]};
}

}  // namespace holdfast
