#include "plain_decoder.hpp"

#include <cmath>

namespace holdfast::testing {

namespace {

using Vector = std::vector<double>;

Vector multiply(const Linear& linear, const Vector& x) {
    const auto* weights = static_cast<const float*>(linear.mapped->data);
    Vector y(std::size_t(linear.outputs()));
    for (std::size_t o = 0; o < y.size(); ++o) {
        if (linear.bias != nullptr) y[o] = double(linear.bias_data()[o]);
        for (std::size_t i = 0; i < x.size(); ++i) y[o] += x[i] * double(weights[o * x.size() + i]);
    }
    return y;
}

Vector normalize(const Vector& x, const ggml_tensor* weight, double epsilon) {
    double squares = 0;
    for (double value : x) squares += value * value;
    Vector y = x;
    for (std::size_t i = 0; i < x.size(); ++i)
        y[i] *= double(static_cast<const float*>(weight->data)[i]) /
                std::sqrt(squares / double(x.size()) + epsilon);
    return y;
}

// Rotates pairs of neighbours, as the llama architecture does.
void rotate(Vector& x, int head_dim, int position, double base) {
    for (std::size_t head = 0; head < x.size(); head += std::size_t(head_dim))
        for (int i = 0; i < head_dim; i += 2) {
            const double angle = position * std::pow(base, -double(i) / head_dim);
            double &a = x[head + std::size_t(i)], &b = x[head + std::size_t(i) + 1];
            const double rotated = a * std::cos(angle) - b * std::sin(angle);
            b = a * std::sin(angle) + b * std::cos(angle);
            a = rotated;
        }
}

}  // namespace

std::vector<float> plain_logits(const Model& model, std::span<const int> tokens, const Mask& mask) {
    const HyperParameters& p = model.parameters();
    const auto d = std::size_t(p.head_dim);
    std::vector<Vector> hidden;
    for (int token : tokens) {
        std::vector<float> row(std::size_t(p.hidden), 0);
        model.embed(token, row.data());
        hidden.emplace_back(row.begin(), row.end());
    }
    for (int l = 0; l < p.layers; ++l) {
        const LayerWeights& w = model.layers[std::size_t(l)];
        std::vector<Vector> queries, keys, values;
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            const Vector x = normalize(hidden[t], w.attention_norm, double(p.rms_epsilon));
            queries.push_back(multiply(w.query, x));
            keys.push_back(multiply(w.key, x));
            values.push_back(multiply(w.value, x));
            rotate(queries[t], p.head_dim, int(t), double(p.rope.freq_base));
            rotate(keys[t], p.head_dim, int(t), double(p.rope.freq_base));
        }
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            Vector attended(std::size_t(p.heads) * d);
            for (int h = 0; h < p.heads; ++h) {
                const int kv = h / p.group();
                Vector weights(t + 1, 0);
                double sum = 0;
                for (std::size_t j = 0; j <= t; ++j) {
                    if (!mask(l, kv, int(t), int(j))) continue;
                    double score = 0;
                    for (std::size_t i = 0; i < d; ++i)
                        score += queries[t][std::size_t(h) * d + i] * keys[j][std::size_t(kv) * d + i];
                    sum += weights[j] = std::exp(score / std::sqrt(double(d)));
                }
                for (std::size_t j = 0; j <= t; ++j)
                    for (std::size_t i = 0; i < d; ++i)
                        attended[std::size_t(h) * d + i] +=
                            weights[j] / sum * values[j][std::size_t(kv) * d + i];
            }
            const Vector out = multiply(w.output, attended);
            for (std::size_t i = 0; i < out.size(); ++i) hidden[t][i] += out[i];
            const Vector x = normalize(hidden[t], w.feed_forward_norm, double(p.rms_epsilon));
            Vector gate = multiply(w.gate, x);
            const Vector up = multiply(w.up, x);
            for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
            const Vector down = multiply(w.down, gate);
            for (std::size_t i = 0; i < down.size(); ++i) hidden[t][i] += down[i];
        }
    }
    const Vector logits =
        multiply(model.output, normalize(hidden.back(), model.output_norm, double(p.rms_epsilon)));
    return {logits.begin(), logits.end()};
}

}  // namespace holdfast::testing
