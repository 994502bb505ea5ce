#include "evict/allocators.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "holdfast/budget.hpp"
#include "evict/selection.hpp"

namespace holdfast {

std::uint32_t pyramid_tokens(int layer, int layers, std::uint32_t tokens, double tokens_per_head,
                             std::uint32_t window, double slope) {
    const double n = tokens, w = window;
    double least = tokens_per_head / slope, most = 2 * tokens_per_head - least;
    if (most >= n - w) {
        most = n - w;
        least = 2 * tokens_per_head - most;
    }
    // Halves round to even, as the published code's do.
    if (layers < 2 || !(n >= most && most >= least && least >= w))
        return std::uint32_t(std::nearbyint(tokens_per_head));
    return std::uint32_t(std::nearbyint(most - layer * (most - least) / (layers - 1)));
}

std::vector<std::uint32_t> share_by_importance(std::span<const double> importance, std::uint32_t tokens,
                                               double tokens_per_head, std::uint32_t least, double pool) {
    const std::size_t heads = importance.size();
    const std::size_t total =
        std::clamp(floor_count(tokens_per_head * double(heads)), heads * least, heads * std::size_t(tokens));
    const double base = double(floor_count(tokens_per_head * (1 - 1 / pool)));
    // Heads without any importance take part with next to nothing, so that all tokens find a place.
    const auto share = [&](std::size_t i, double scale) {
        return std::clamp(base + scale * (importance[i] + 1e-12), double(least), double(tokens));
    };
    const auto sum = [&](double scale) {
        double result = 0;
        for (std::size_t i = 0; i < heads; ++i) result += share(i, scale);
        return result;
    };
    // The sum rises with the scale: halve the interval.
    double low = 0, high = 1;
    while (sum(high) < double(total)) high *= 2;
    for (int i = 0; i < 200; ++i) {
        const double middle = (low + high) / 2;
        (sum(middle) <= double(total) ? low : high) = middle;
    }

    std::vector<std::uint32_t> counts(heads);
    std::vector<std::size_t> order(heads);
    std::iota(order.begin(), order.end(), std::size_t(0));
    for (std::size_t i = 0; i < heads; ++i) counts[i] = std::uint32_t(floor_count(share(i, low)));
    // What rounding down left goes to the largest remainders.
    const auto remainder = [&](std::size_t i) { return share(i, low) - counts[i]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return remainder(a) > remainder(b); });
    std::size_t left = total - std::min(total, std::accumulate(counts.begin(), counts.end(), std::size_t(0)));
    while (left > 0)
        for (std::size_t i : order)
            if (left > 0 && counts[i] < tokens) ++counts[i], --left;
    return counts;
}

namespace {

class Uniform final : public Allocator {
  public:
    Allocation allocate(const LayerScores& layer) override {
        return {std::vector<std::uint32_t>(std::size_t(layer.shape.kv_heads),
                                           std::uint32_t(floor_count(layer.tokens_per_head))),
                0};
    }
};

class Pyramid final : public Allocator {
  public:
    explicit Pyramid(double slope) : slope_(slope) {}
    Allocation allocate(const LayerScores& layer) override {
        const LayerShape& s = layer.shape;
        return {std::vector<std::uint32_t>(std::size_t(s.kv_heads),
                                           pyramid_tokens(s.layer, s.layers, s.tokens, layer.tokens_per_head,
                                                          std::max(1u, layer.forced.count()), slope_)),
                0};
    }

  private:
    double slope_;
};

// The heads of a layer share `total` tokens: each keeps its best `safeguard`, then the best of all.
Allocation share_in_layer(const LayerScores& layer, std::size_t total, std::uint32_t safeguard) {
    const LayerShape& s = layer.shape;
    const std::uint32_t begin = layer.forced.first, end = s.tokens - layer.forced.last;
    const std::uint32_t forced = layer.forced.count();
    const std::uint32_t safe = std::max(safeguard, forced > 0 ? 0u : 1u);  // no head stays empty
    std::vector<float> scores;
    for (int h = 0; h < s.kv_heads; ++h) {
        const auto head = layer.scores.subspan(s.at(h, begin), end - begin);
        const std::size_t at = scores.size();
        scores.insert(scores.end(), head.begin(), head.end());
        for (std::uint32_t j : best_tokens(head, safe - std::min(safe, forced)))
            scores[at + j] = std::numeric_limits<float>::infinity();
    }
    Allocation allocation{std::vector<std::uint32_t>(std::size_t(s.kv_heads), forced), safeguard};
    const std::size_t free = total - std::min(total, std::size_t(s.kv_heads) * forced);
    for (std::uint32_t i : best_tokens(scores, free)) ++allocation.tokens[i / (end - begin)];
    return allocation;
}

class Ada final : public Allocator {
  public:
    explicit Ada(double alpha) : alpha_(alpha) {}
    Allocation allocate(const LayerScores& layer) override {
        const std::size_t even = floor_count(layer.tokens_per_head);
        return share_in_layer(layer, even * std::size_t(layer.shape.kv_heads),
                              std::uint32_t(floor_count(double(even) * alpha_)));
    }

  private:
    double alpha_;
};

class Joint final : public Allocator {
  public:
    Allocation allocate(const LayerScores& layer) override {
        return share_in_layer(layer, floor_count(layer.tokens_per_head * layer.shape.kv_heads), 0);
    }
};

class HeadKv final : public Allocator {
  public:
    explicit HeadKv(const AllocatorContext& context)
        : counts_(share_by_importance(context.head_importance, context.tokens, context.tokens_per_head,
                                      std::max(1u, context.forced.count()), context.settings.pool)),
          fixed_(std::uint32_t(floor_count(context.tokens_per_head * (1 - 1 / context.settings.pool)))) {}
    Allocation allocate(const LayerScores& layer) override {
        const auto first = counts_.begin() + std::ptrdiff_t(layer.shape.layer) * layer.shape.kv_heads;
        return {{first, first + layer.shape.kv_heads}, fixed_};
    }

  private:
    std::vector<std::uint32_t> counts_;  // [layers, kv_heads]
    std::uint32_t fixed_;                // of each head, whatever its importance: its safeguard
};

}  // namespace

std::vector<AllocatorPart> builtin_allocators() {
    const auto part = [](MethodPart text, bool by_score, AllocatorFactory make) {
        AllocatorPart result;
        static_cast<MethodPart&>(result) = std::move(text);
        result.by_score = by_score;
        result.make = std::move(make);
        return result;
    };
    return {
        part({"uniform", "the same for every head", "", "none"}, false,
             [](const AllocatorContext&) { return std::make_unique<Uniform>(); }),
        part({"pyramid", "falls linearly with depth", "PyramidKV (arXiv 2406.02069)", "none", {"beta"}},
             false, [](const AllocatorContext& c) { return std::make_unique<Pyramid>(c.settings.slope); }),
        part({"ada",
              "a layer's heads share, with a safeguard for each",
              "AdaKV (arXiv 2407.11550)",
              "n per KV head; n",
              {"alpha"}},
             true, [](const AllocatorContext& c) { return std::make_unique<Ada>(c.settings.alpha); }),
        part({"joint", "a layer's heads share, without safeguard", "DefensiveKV", "n per KV head; n"}, true,
             [](const AllocatorContext&) { return std::make_unique<Joint>(); }),
        part({"headkv",
              "by a profile of the model's heads",
              "HeadKV (arXiv 2410.19258)",
              "none",
              {"beta", "profile"}},
             false, [](const AllocatorContext& c) { return std::make_unique<HeadKv>(c); }),
        part({"layer", "all layers and heads share", "DefensiveKV (Layer-DefensiveKV)",
              "budget per layer; one number per kept entry"},
             true, nullptr),
    };
}

}  // namespace holdfast
