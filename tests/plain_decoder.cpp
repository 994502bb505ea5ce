#include "plain_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace holdfast::testing {

namespace {

using Vector = std::vector<double>;

Vector multiply(const float* weights, std::size_t outputs, const Vector& x, const float* bias = nullptr) {
    Vector y(outputs);
    for (std::size_t o = 0; o < outputs; ++o) {
        if (bias != nullptr) y[o] = double(bias[o]);
        for (std::size_t i = 0; i < x.size(); ++i) y[o] += x[i] * double(weights[o * x.size() + i]);
    }
    return y;
}

Vector multiply(const Linear& linear, const Vector& x) {
    return multiply(static_cast<const float*>(linear.weight->data), std::size_t(linear.outputs()), x,
                    linear.bias_data());
}

// One expert's matrix.
Vector multiply(const ggml_tensor* experts, std::size_t expert, const Vector& x) {
    const auto outputs = std::size_t(experts->ne[1]);
    return multiply(static_cast<const float*>(experts->data) + expert * outputs * x.size(), outputs, x);
}

// By parts of the weight's length.
Vector normalize(const Vector& x, const ggml_tensor* weight, double epsilon) {
    Vector y = x;
    if (weight == nullptr) return y;
    const auto length = std::size_t(weight->ne[0]);
    for (std::size_t begin = 0; begin < x.size(); begin += length) {
        double squares = 0;
        for (std::size_t i = 0; i < length; ++i) squares += x[begin + i] * x[begin + i];
        for (std::size_t i = 0; i < length; ++i)
            y[begin + i] *= double(static_cast<const float*>(weight->data)[i]) /
                            std::sqrt(squares / double(length) + epsilon);
    }
    return y;
}

void rotate(Vector& x, std::size_t head_dim, int position, const Rotation& rotation) {
    const std::size_t pairs = rotation.frequencies.size();
    for (std::size_t head = 0; head < x.size(); head += head_dim)
        for (std::size_t i = 0; i < pairs; ++i) {
            const double angle = position * rotation.frequencies[i], m = rotation.magnitude;
            double& a = x[head + (rotation.neighbours ? 2 * i : i)];
            double& b = x[head + (rotation.neighbours ? 2 * i + 1 : i + pairs)];
            const double rotated = m * (a * std::cos(angle) - b * std::sin(angle));
            b = m * (a * std::sin(angle) + b * std::cos(angle));
            a = rotated;
        }
}

double activate(Activation activation, double x) {
    if (activation == Activation::silu) return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

Vector gated(const HyperParameters& p, Vector gate, const Vector& up) {
    for (std::size_t i = 0; i < gate.size(); ++i)
        gate[i] = activate(p.architecture.activation, gate[i]) * up[i];
    return gate;
}

Vector feed_forward(const HyperParameters& p, const LayerWeights& w, const Vector& x) {
    if (!w.router) return multiply(w.down, gated(p, multiply(w.gate, x), multiply(w.up, x)));
    Vector shares = multiply(w.router, x);
    double total = 0;
    for (double& share : shares) total += share = std::exp(share);
    std::vector<std::size_t> order(shares.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return shares[a] > shares[b]; });
    order.resize(std::size_t(p.experts_used));
    if (p.architecture.expert_weights_sum_to_1) {
        total = 0;
        for (std::size_t expert : order) total += shares[expert];
    }
    Vector result(x.size());
    for (std::size_t expert : order) {
        const Vector down =
            multiply(w.down_experts, expert,
                     gated(p, multiply(w.gate_experts, expert, x), multiply(w.up_experts, expert, x)));
        for (std::size_t i = 0; i < result.size(); ++i) result[i] += down[i] * shares[expert] / total;
    }
    if (w.shared_up) {
        const Vector shared =
            multiply(w.shared_down, gated(p, multiply(w.shared_gate, x), multiply(w.shared_up, x)));
        const double share =
            w.shared_router
                ? 1 / (1 +
                       std::exp(-multiply(static_cast<const float*>(w.shared_router.weight->data), 1, x)[0]))
                : 1.0;
        for (std::size_t i = 0; i < result.size(); ++i) result[i] += share * shared[i];
    }
    return result;
}

}  // namespace

std::vector<float> plain_logits(const GgufModel& model, std::span<const Rotation> rotations,
                                std::span<const int> tokens, const Mask& mask) {
    const HyperParameters& p = model.parameters();
    const auto d = std::size_t(p.head_dim);
    const double epsilon = double(p.rms_epsilon);
    std::vector<Vector> hidden;
    for (int token : tokens) {
        std::vector<float> row(std::size_t(p.hidden), 0);
        model.embed(token, row.data());
        hidden.emplace_back(row.begin(), row.end());
    }
    const auto add = [&](Vector& to, const Vector& x, const ggml_tensor* post_norm) {
        const Vector y = normalize(x, post_norm, epsilon);
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += y[i] * double(p.residual_scale);
    };
    for (int l = 0; l < p.layers; ++l) {
        const LayerWeights& w = model.layers[std::size_t(l)];
        std::vector<Vector> queries, keys, values;
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            const Vector x = normalize(hidden[t], w.attention_norm, epsilon);
            queries.push_back(normalize(multiply(w.query, x), w.query_norm, epsilon));
            keys.push_back(normalize(multiply(w.key, x), w.key_norm, epsilon));
            values.push_back(multiply(w.value, x));
            rotate(queries[t], d, int(t), rotations[std::size_t(l)]);
            rotate(keys[t], d, int(t), rotations[std::size_t(l)]);
        }
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            Vector attended(std::size_t(p.heads) * d);
            const std::size_t window = p.slides(l) ? p.sliding_window : t + 1;
            for (int h = 0; h < p.heads; ++h) {
                const int kv = h / p.group();
                Vector weights(t + 1, 0);
                double sum = 0;
                for (std::size_t j = t + 1 - std::min(t + 1, window); j <= t; ++j) {
                    if (!p.slides(l) && !mask(l, kv, int(t), int(j))) continue;
                    double score = 0;
                    for (std::size_t i = 0; i < d; ++i)
                        score += queries[t][std::size_t(h) * d + i] * keys[j][std::size_t(kv) * d + i];
                    score *= double(p.attention_scale);
                    const double cap = double(p.attention_soft_cap);
                    if (cap > 0) score = cap * std::tanh(score / cap);
                    sum += weights[j] = std::exp(score);
                }
                for (std::size_t j = 0; j <= t; ++j)
                    for (std::size_t i = 0; i < d; ++i)
                        attended[std::size_t(h) * d + i] +=
                            weights[j] / sum * values[j][std::size_t(kv) * d + i];
            }
            add(hidden[t], multiply(w.output, attended), w.attention_post_norm);
            add(hidden[t], feed_forward(p, w, normalize(hidden[t], w.feed_forward_norm, epsilon)),
                w.feed_forward_post_norm);
        }
    }
    Vector logits = multiply(model.output, normalize(hidden.back(), model.output_norm, epsilon));
    for (double& logit : logits) {
        logit *= double(p.logit_scale);
        const double cap = double(p.final_soft_cap);
        if (cap > 0) logit = cap * std::tanh(logit / cap);
    }
    return {logits.begin(), logits.end()};
}

}  // namespace holdfast::testing
