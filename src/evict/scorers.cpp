#include "evict/scorers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "holdfast/error.hpp"
#include "evict/window_attention.hpp"

namespace holdfast {

void Scorer::worst_case(LayerView&, std::span<float>) {
    throw Error("this scorer sees no queries: there is no worst case over them");
}

namespace {

// Mean over the group and the window's queries of their attention, pooled.
class SnapKv final : public Scorer {
  public:
    SnapKv(std::uint32_t window, int kernel) : window_(window), kernel_(kernel) {}
    Forced forced() const override { return {0, window_}; }
    std::uint32_t window_queries() const override { return window_; }

    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        const WindowSummary& window = layer.window(window_, kernel_);
        const std::uint32_t past = s.tokens - window_;
        for (int h = 0; h < s.kv_heads; ++h) {
            const float* mean = window.mean.data() + s.at(h, 0);
            float* to = importance.data() + s.at(h, 0);
            const std::span<const std::uint32_t> held = layer.held(h);
            if (held.empty()) {
                pool_row({mean, past}, kernel_, to);
                continue;
            }
            // Neighbours are those that are still there.
            const std::size_t count = std::size_t(std::ranges::lower_bound(held, past) - held.begin());
            std::vector<float> there(count), pooled(count);
            for (std::size_t i = 0; i < count; ++i) there[i] = mean[held[i]];
            pool_row(there, kernel_, pooled.data());
            for (std::size_t i = 0; i < count; ++i) to[held[i]] = pooled[i];
        }
    }
    void worst_case(LayerView& layer, std::span<float> risk) override {
        std::ranges::copy(layer.window(window_, kernel_).worst, risk.begin());
    }

  private:
    std::uint32_t window_;
    int kernel_;
};

// Attention of the last query, mean over all heads, the same for every KV head.
class Tova final : public Scorer {
  public:
    Tova(std::uint32_t window, int kernel) : window_(window), kernel_(kernel) {}
    Forced forced() const override { return {0, 1}; }
    std::uint32_t window_queries() const override { return window_; }

    void score(LayerView& layer, std::span<float> importance) override {
        const WindowSummary& last = layer.window(1, 1);
        const LayerShape& s = layer.shape();
        for (std::uint32_t j = 0; j < s.tokens; ++j) {
            float mean = 0;
            for (int h = 0; h < s.kv_heads; ++h) mean += last.mean[s.at(h, j)];
            for (int h = 0; h < s.kv_heads; ++h) importance[s.at(h, j)] = mean / float(s.kv_heads);
        }
    }
    // Over all heads and the window's queries.
    void worst_case(LayerView& layer, std::span<float> risk) override {
        const WindowSummary& window = layer.window(window_, kernel_);
        const LayerShape& s = layer.shape();
        for (std::uint32_t j = 0; j < s.tokens; ++j) {
            float worst = 0;
            for (int h = 0; h < s.kv_heads; ++h) worst = std::max(worst, window.worst[s.at(h, j)]);
            for (int h = 0; h < s.kv_heads; ++h) risk[s.at(h, j)] = worst;
        }
    }

  private:
    std::uint32_t window_;
    int kernel_;
};

// Attention of all queries of the context, mean over those that see the token.
class H2o final : public Scorer {
  public:
    H2o(std::uint32_t window, int kernel, bool worst_case)
        : window_(window), kernel_(kernel), worst_case_(worst_case) {}
    Forced forced() const override { return {0, window_}; }
    bool watches_queries() const override { return true; }

    void begin_layer(const LayerShape& shape) override {
        if (worst_case_)
            worst_.assign(shape.entries(), 0.0f);
        else
            sum_.assign(shape.entries(), 0.0);
    }
    void watch(LayerView& layer, const QueryChunk& queries) override {
        if (worst_case_)
            layer.raise_attention(queries, window_, kernel_, worst_);
        else
            layer.add_attention(queries, sum_);
    }
    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        for (std::size_t i = 0; i < s.entries(); ++i)
            importance[i] = float(sum_[i] / double(s.tokens - i % s.tokens));
    }
    void worst_case(LayerView&, std::span<float> risk) override { std::ranges::copy(worst_, risk.begin()); }

    std::size_t bytes(const LayerShape& shape) const override {
        return shape.entries() * (worst_case_ ? sizeof(float) : sizeof(double));
    }

  private:
    std::uint32_t window_;
    int kernel_;
    bool worst_case_;
    std::vector<double> sum_;  // [kv_heads, tokens]
    std::vector<float> worst_;
};

// -‖k‖₂
class KeyNorm final : public Scorer {
  public:
    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        std::vector<float> key(std::size_t(s.head_dim));
        for (int h = 0; h < s.kv_heads; ++h)
            for (std::uint32_t j = 0; j < s.tokens; ++j) {
                layer.read_key(h, j, key);
                double square = 0;
                for (float x : key) square += double(x) * x;
                importance[s.at(h, j)] = float(-std::sqrt(square));
            }
    }
};

// -cos(k, mean over tokens of k / ‖k‖₂)
class KeyDiff final : public Scorer {
  public:
    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        std::vector<float> key(std::size_t(s.head_dim));
        std::vector<double> anchor(key.size());
        // F.normalize and F.cosine_similarity of the published code divide by no less than these.
        constexpr double least_norm = 1e-12, least_product = 1e-8;
        const auto norm = [&](auto& vector) {
            double square = 0;
            for (auto x : vector) square += double(x) * double(x);
            return std::sqrt(square);
        };
        for (int h = 0; h < s.kv_heads; ++h) {
            std::fill(anchor.begin(), anchor.end(), 0.0);
            for (std::uint32_t j = 0; j < s.tokens; ++j) {
                layer.read_key(h, j, key);
                const double length = std::max(norm(key), least_norm);
                for (std::size_t i = 0; i < key.size(); ++i) anchor[i] += key[i] / length / s.tokens;
            }
            const double anchor_length = norm(anchor);
            for (std::uint32_t j = 0; j < s.tokens; ++j) {
                layer.read_key(h, j, key);
                double product = 0;
                for (std::size_t i = 0; i < key.size(); ++i) product += key[i] * anchor[i];
                importance[s.at(h, j)] = float(
                    -product / (std::max(norm(key), least_product) * std::max(anchor_length, least_product)));
            }
        }
    }
};

// The first tokens and the last ones.
class Streaming final : public Scorer {
  public:
    explicit Streaming(std::uint32_t sinks) : sinks_(sinks) {}
    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        for (int h = 0; h < s.kv_heads; ++h)
            for (std::uint32_t j = 0; j < s.tokens; ++j)
                importance[s.at(h, j)] = float(j < sinks_ ? 2 * s.tokens - j : j);
    }

  private:
    std::uint32_t sinks_;
};

// Uniform in [0, 1): a hash of seed, layer, head and position.
class Random final : public Scorer {
  public:
    Random(std::uint64_t seed, std::uint32_t window) : seed_(seed), window_(window) {}
    Forced forced() const override { return {0, window_}; }
    void score(LayerView& layer, std::span<float> importance) override {
        const LayerShape& s = layer.shape();
        for (std::size_t i = 0; i < s.entries(); ++i)
            importance[i] = float(mix(mix(mix(seed_) + std::uint64_t(s.layer)) + i) >> 40) * 0x1p-24f;
    }

  private:
    static std::uint64_t mix(std::uint64_t x) {  // SplitMix64
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    std::uint64_t seed_;
    std::uint32_t window_;
};

}  // namespace

std::vector<ScorerPart> builtin_scorers() {
    const auto part = [](MethodPart text, ScorerFactory make) {
        ScorerPart result;
        static_cast<MethodPart&>(result) = std::move(text);
        result.make = std::move(make);
        return result;
    };
    std::vector<ScorerPart> parts;
    parts.push_back(part({"snapkv",
                          "attention of the last w queries, pooled",
                          "SnapKV (arXiv 2404.14469)",
                          "w·n·d per query head; one KV head's w·G·n weights",
                          {"window", "kernel"}},
                         [](const ScorerContext& c) {
                             return std::make_unique<SnapKv>(c.settings.window, c.settings.kernel);
                         }));
    parts.back().sees_queries = parts.back().attention = true;
    parts.push_back(part(
        {"tova", "attention of the last query, the same for every head", "TOVA (arXiv 2401.06104)",
         "n·d per query head; n"},
        [](const ScorerContext& c) { return std::make_unique<Tova>(c.settings.window, c.settings.kernel); }));
    parts.back().sees_queries = parts.back().attention = true;
    parts.push_back(part({"h2o",
                          "attention of all queries, mean over those that see the token",
                          "H2O (arXiv 2306.14048)",
                          "n²·d/2 per query head; n per KV head",
                          {"window"}},
                         [](const ScorerContext& c) {
                             return std::make_unique<H2o>(c.settings.window, c.settings.kernel, c.worst_case);
                         }));
    parts.back().sees_queries = parts.back().attention = true;
    parts.push_back(
        part({"knorm", "small keys first: -‖k‖₂", "Devoto et al. (arXiv 2406.11430)", "n·d per KV head; n"},
             [](const ScorerContext&) { return std::make_unique<KeyNorm>(); }));
    parts.push_back(
        part({"keydiff", "keys unlike the mean key", "KeyDiff (arXiv 2504.15364)", "n·d per KV head; n"},
             [](const ScorerContext&) { return std::make_unique<KeyDiff>(); }));
    parts.push_back(part({"expected-attention",
                          "attention of queries like the context's, yet to come",
                          "Expected Attention (arXiv 2510.00636)",
                          "n·d² per query head; d² and n per query head",
                          {"sinks", "future"}},
                         [](const ScorerContext& c) {
                             return make_expected_attention(c.settings.sinks, c.settings.future, !c.refined);
                         }));
    parts.back().attention = true;
    parts.push_back(
        part({"streaming",
              "the first tokens and the last ones",
              "StreamingLLM (arXiv 2309.17453)",
              "n; none",
              {"sinks"}},
             [](const ScorerContext& c) { return std::make_unique<Streaming>(c.settings.sinks); }));
    parts.back().compares = false;
    parts.push_back(part(
        {"random", "uniformly random, seeded", "baseline", "n; none", {"window", "seed"}},
        [](const ScorerContext& c) { return std::make_unique<Random>(c.settings.seed, c.settings.window); }));
    return parts;
}

}  // namespace holdfast
