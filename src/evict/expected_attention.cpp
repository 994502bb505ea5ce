#include <algorithm>
#include <cmath>
#include <limits>

#include "holdfast/error.hpp"
#include "evict/scorers.hpp"

namespace holdfast {

namespace {

// Expected attention of future queries: they are taken for Gaussian, with the mean μ and covariance Σ of the
// context's queries before rotation, turned by the average rotation R̄ of the next `future` positions.
//   logit = s · k·R̄μ + s²/2 · kᵀ R̄ΣR̄ᵀ k,  importance = softmax over the tokens, mean over the group, · ‖v‖₂
// The first `sinks` queries and tokens are outliers: left out, and always kept.
class ExpectedAttention final : public Scorer {
  public:
    ExpectedAttention(std::uint32_t sinks, std::uint32_t future, bool weigh)
        : sinks_(sinks), future_(future), weigh_(weigh) {}

    Forced forced() const override { return {sinks_, 0}; }
    bool watches_queries() const override { return true; }

    void begin_layer(const LayerShape& s) override {
        if (s.rotation == nullptr || 2 * s.rotation->frequencies.size() > std::size_t(s.head_dim))
            throw Error("expected-attention needs to know the rotation of this model's queries");
        const std::size_t d = std::size_t(s.head_dim);
        count_ = 0;
        sum_.assign(std::size_t(s.heads()) * d, 0.0);
        products_.assign(std::size_t(s.heads()) * d * d, 0.0);
    }

    void watch(LayerView& layer, const QueryChunk& chunk) override {
        const LayerShape& s = layer.shape();
        const std::size_t d = std::size_t(s.head_dim);
        const std::uint32_t skipped = std::min(chunk.count, sinks_ - std::min(sinks_, chunk.first_position));
        const std::vector<Turn> turns = backward_turns(*s.rotation, chunk);
        layer.parallel(s.heads(), [&](int head, int) {
            std::vector<double> query(d);
            double* sum = sum_.data() + std::size_t(head) * d;
            double* products = products_.data() + std::size_t(head) * d * d;
            for (std::uint32_t t = skipped; t < chunk.count; ++t) {
                const float* from =
                    chunk.queries + (std::size_t(t) * std::size_t(s.heads()) + std::size_t(head)) * d;
                std::copy_n(from, d, query.begin());
                turn_back(*s.rotation, turns.data() + t * s.rotation->frequencies.size(), query);
                for (std::size_t i = 0; i < d; ++i) {
                    sum[i] += query[i];
                    for (std::size_t j = i; j < d; ++j) products[i * d + j] += query[i] * query[j];
                }
            }
        });
        count_ += chunk.count - skipped;
    }

    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        const std::size_t d = std::size_t(s.head_dim);
        std::fill(importance.begin(), importance.end(), 0.0f);
        std::vector<float> logits(std::size_t(s.heads()) * s.tokens);
        layer.parallel(s.heads(), [&](int head, int) {
            std::vector<float> mean(d), covariance(d * d), key(d);
            statistics(s, head, mean, covariance);
            float* own = logits.data() + std::size_t(head) * s.tokens;
            for (std::uint32_t j = sinks_; j < s.tokens; ++j) {
                layer.read_key(head / s.group, j, key);
                double linear = 0, quadratic = 0;
                for (std::size_t i = 0; i < d; ++i) {
                    float row = 0;
                    for (std::size_t k = 0; k < d; ++k) row += covariance[i * d + k] * key[k];
                    linear += double(mean[i]) * double(key[i]);
                    quadratic += double(row) * double(key[i]);
                }
                own[j] = float(linear * double(s.scale) + quadratic * double(s.scale) * double(s.scale) / 2);
            }
            softmax({own + sinks_, s.tokens - sinks_});
        });
        std::vector<float> value(d);
        for (int h = 0; h < s.kv_heads; ++h)
            for (std::uint32_t j = sinks_; j < s.tokens; ++j) {
                float mean = 0;
                for (int g = 0; g < s.group; ++g)
                    mean += logits[std::size_t(h * s.group + g) * s.tokens + j] / float(s.group);
                if (weigh_) {
                    layer.read_value(h, j, value);
                    double square = 0;
                    for (float x : value) square += double(x) * double(x);
                    mean *= float(std::sqrt(square));
                }
                importance[s.at(h, j)] = mean;
            }
    }

    std::size_t bytes(const LayerShape& s) const override {
        const std::size_t d = std::size_t(s.head_dim);
        return std::size_t(s.heads()) * (d * (d + 1) * sizeof(double) + s.tokens * sizeof(float));
    }

  private:
    struct Pair {
        std::size_t first, second;
    };
    static Pair pair(const Rotation& rotation, std::size_t i) {
        if (rotation.neighbours) return {2 * i, 2 * i + 1};
        return {i, i + rotation.frequencies.size()};
    }

    struct Turn {
        double cosine, sine;
    };
    // [queries of the chunk, pairs]
    static std::vector<Turn> backward_turns(const Rotation& rotation, const QueryChunk& chunk) {
        std::vector<Turn> turns;
        for (std::uint32_t t = 0; t < chunk.count; ++t)
            for (double frequency : rotation.frequencies) {
                const double angle = (chunk.first_position + t) * frequency;
                turns.push_back({std::cos(angle) / rotation.magnitude, std::sin(angle) / rotation.magnitude});
            }
        return turns;
    }
    static void turn_back(const Rotation& rotation, const Turn* turns, std::vector<double>& vector) {
        for (std::size_t i = 0; i < rotation.frequencies.size(); ++i) {
            const auto [first, second] = pair(rotation, i);
            const double x = vector[first], y = vector[second];
            vector[first] = turns[i].cosine * x + turns[i].sine * y;
            vector[second] = turns[i].cosine * y - turns[i].sine * x;
        }
    }

    // R̄μ and R̄ΣR̄ᵀ of a query head.
    void statistics(const LayerShape& s, int head, std::vector<float>& mean,
                    std::vector<float>& covariance) const {
        const std::size_t d = std::size_t(s.head_dim);
        const double count = std::max<double>(1, count_);
        std::vector<double> mu(d), sigma(d * d);
        for (std::size_t i = 0; i < d; ++i) mu[i] = sum_[std::size_t(head) * d + i] / count;
        for (std::size_t i = 0; i < d; ++i)
            for (std::size_t j = i; j < d; ++j)
                sigma[i * d + j] = sigma[j * d + i] =
                    products_[(std::size_t(head) * d + i) * d + j] / count - mu[i] * mu[j];

        // The average rotation acts on pairs: [c -s; s c] with the averages of cosine and sine.
        for (std::size_t i = 0; i < s.rotation->frequencies.size(); ++i) {
            double c = 0, sn = 0;
            for (std::uint32_t p = 0; p < future_; ++p) {
                const double angle = double(s.tokens + p) * s.rotation->frequencies[i];
                c += std::cos(angle) * s.rotation->magnitude / future_;
                sn += std::sin(angle) * s.rotation->magnitude / future_;
            }
            const auto [first, second] = pair(*s.rotation, i);
            const auto turn = [&](double& x, double& y) {
                const double old = x;
                x = c * old - sn * y;
                y = sn * old + c * y;
            };
            turn(mu[first], mu[second]);
            for (std::size_t j = 0; j < d; ++j) turn(sigma[first * d + j], sigma[second * d + j]);
            for (std::size_t j = 0; j < d; ++j) turn(sigma[j * d + first], sigma[j * d + second]);
        }
        std::ranges::transform(mu, mean.begin(), [](double x) { return float(x); });
        std::ranges::transform(sigma, covariance.begin(), [](double x) { return float(x); });
    }

    static void softmax(std::span<float> logits) {
        const float most = *std::ranges::max_element(logits);
        double sum = 0;
        for (float& x : logits) sum += double(x = std::exp(x - most));
        for (float& x : logits) x = float(double(x) / sum);
    }

    std::uint32_t sinks_, future_;
    bool weigh_;
    std::uint32_t count_ = 0;       // of queries watched
    std::vector<double> sum_;       // [heads, head_dim]
    std::vector<double> products_;  // [heads, head_dim, head_dim], upper triangle
};

}  // namespace

std::unique_ptr<Scorer> make_expected_attention(std::uint32_t sinks, std::uint32_t future, bool weigh) {
    return std::make_unique<ExpectedAttention>(sinks, future, weigh);
}

}  // namespace holdfast
