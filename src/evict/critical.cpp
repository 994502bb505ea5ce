#include "evict/critical.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "evict/selection.hpp"

namespace holdfast {

std::vector<std::uint32_t> select_in_two_stages(std::span<const float> scores, std::span<const float> norms,
                                                std::size_t count, std::size_t first, double epsilon) {
    std::vector<float> refined(scores.size());
    for (std::size_t j = 0; j < scores.size(); ++j) refined[j] = (scores[j] + float(epsilon)) * norms[j];
    for (std::uint32_t j : best_tokens(scores, std::min(first, count)))
        refined[j] = std::numeric_limits<float>::infinity();
    return best_tokens(refined, count);
}

void weigh_by_norms(const CompetingScores& layer, std::span<const float> norms) {
    for (std::uint32_t j = 0; j < layer.end - layer.begin; ++j) {
        float total = 0;
        for (int h = 0; h < layer.kv_heads; ++h) total += layer.same(norms, h)[j];
        if (total <= 0) continue;  // all values are zero: the heads stay as they are
        for (int h = 0; h < layer.kv_heads; ++h) layer.head(h)[j] *= layer.same(norms, h)[j] / total;
    }
}

namespace {

// sure: attention of earlier tokens, which are kept in any case.
std::vector<std::uint32_t> secured_tokens(std::span<const float> attention, double sure, double mass,
                                          std::size_t at_most) {
    const double sum = sure + std::accumulate(attention.begin(), attention.end(), 0.0);
    if (at_most == 0 || attention.empty() || sum <= 0) return {};
    std::vector<std::uint32_t> order(attention.size());
    std::iota(order.begin(), order.end(), 0u);
    // Only the first at_most + 1 matter; ties go to the lower position.
    const std::size_t sorted = std::min(order.size(), at_most + 1);
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
        return attention[a] != attention[b] ? attention[a] > attention[b] : a < b;
    };
    const auto behind = order.begin() + std::ptrdiff_t(sorted);
    std::nth_element(order.begin(), behind - 1, order.end(), before);
    std::sort(order.begin(), behind, before);
    double cumulative = sure / sum;
    std::size_t count = 0;
    for (; count < std::min(sorted, at_most); ++count) {
        cumulative += attention[order[count]] / sum;
        if (cumulative >= mass) break;  // the element that reaches it is not included
    }
    order.resize(count);
    return order;
}

}  // namespace

void secure_mass(const CompetingScores& layer, std::span<const float> attention, double mass,
                 std::size_t at_most) {
    float highest = -std::numeric_limits<float>::infinity();
    for (int h = 0; h < layer.kv_heads; ++h)
        highest = std::max(highest, *std::max_element(layer.head(h).begin(), layer.head(h).end()));
    for (int h = 0; h < layer.kv_heads; ++h) {
        const auto first = attention.begin() + std::ptrdiff_t(std::size_t(h) * layer.stride);
        const double sure = std::accumulate(first, first + layer.begin, 0.0);
        for (std::uint32_t j : secured_tokens(layer.same(attention, h), sure, mass, at_most))
            layer.head(h)[j] = highest;
    }
}

}  // namespace holdfast
