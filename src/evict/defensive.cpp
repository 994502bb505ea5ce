#include "evict/defensive.hpp"

#include <algorithm>
#include <numeric>

#include "evict/budget.hpp"

namespace holdfast {

namespace {

// risk = max(risk, mean_j risk), per head: an unseen token is never safer than the average one.
void apply_prior(const DefensiveInput& input, std::vector<float>& risk) {
    for (std::uint32_t h = 0; h < input.kv_heads; ++h) {
        const std::span<float> head(risk.data() + input.at(h, 0), input.past);
        const double sum = std::accumulate(head.begin(), head.end(), 0.0);
        const float prior = float(sum / input.past);
        for (float& value : head) value = std::max(value, prior);
    }
}

// risk · vnorm / Σ_heads vnorm at the same token: the norm says which head needs it.
void weigh_by_norms(const DefensiveInput& input, std::vector<float>& risk) {
    for (std::uint32_t j = 0; j < input.past; ++j) {
        float total = 0;
        for (std::uint32_t h = 0; h < input.kv_heads; ++h) total += input.vnorm[input.at(h, j)];
        if (total <= 0) continue;  // all values are zero: the heads stay as they are
        for (std::uint32_t h = 0; h < input.kv_heads; ++h)
            risk[input.at(h, j)] *= input.vnorm[input.at(h, j)] / total;
    }
}

// The first stage: the tokens of one head that are kept whatever their risk, as few as secure the mass.
std::vector<std::uint32_t> secured_tokens(std::span<const float> mean_attention, double threshold,
                                          std::size_t at_most) {
    const double sum = std::accumulate(mean_attention.begin(), mean_attention.end(), 0.0);
    if (at_most == 0 || sum <= 0) return {};
    std::vector<std::uint32_t> order(mean_attention.size());
    std::iota(order.begin(), order.end(), 0u);
    // Only the first at_most + 1 matter; ties go to the lower position.
    const std::size_t sorted = std::min(order.size(), at_most + 1);
    std::partial_sort(
        order.begin(), order.begin() + std::ptrdiff_t(sorted), order.end(),
        [&](std::uint32_t a, std::uint32_t b) {
            return mean_attention[a] != mean_attention[b] ? mean_attention[a] > mean_attention[b] : a < b;
        });
    double cumulative = 0;
    std::size_t count = 0;
    for (; count < std::min(sorted, at_most); ++count) {
        cumulative += mean_attention[order[count]] / sum;
        if (cumulative >= threshold) break;  // the element that reaches it is not included
    }
    order.resize(count);
    return order;
}

}  // namespace

DefensiveScores defensive_scores(const DefensiveInput& input, const DefensiveSettings& settings,
                                 double tokens_per_head) {
    DefensiveScores scores{input.risk, 0};
    apply_prior(input, scores.past);
    weigh_by_norms(input, scores.past);
    scores.highest = *std::max_element(scores.past.begin(), scores.past.end());

    const double n = double(input.past) + settings.window;
    const std::size_t allowed = floor_count(input.past * tokens_per_head / n);  // ⌊(n - w)ρ⌋
    const std::size_t at_most = allowed - std::min<std::size_t>(allowed, settings.window);
    for (std::uint32_t h = 0; h < input.kv_heads; ++h) {
        const std::span<const float> attention(input.mean_attention.data() + input.at(h, 0), input.past);
        for (std::uint32_t j : secured_tokens(attention, settings.mass - input.window_mass, at_most))
            scores.past[input.at(h, j)] = scores.highest;
    }
    return scores;
}

}  // namespace holdfast
