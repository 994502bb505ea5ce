// CriticalKV: scores refined by what a token's value adds to the output. docs/methods/critical.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

// The two-stage form, for a head that keeps `count` tokens: the best `first` by score, then up to `count` by
// (score + epsilon) · norm among the rest. Returns indices, rising.
std::vector<std::uint32_t> select_in_two_stages(std::span<const float> scores, std::span<const float> norms,
                                                std::size_t count, std::size_t first, double epsilon);

// The mass form works on a layer's scores [kv_heads, stride], of which the columns [begin, end) compete.
struct CompetingScores {
    std::span<float> scores;
    int kv_heads = 0;
    std::size_t stride = 0;
    std::uint32_t begin = 0, end = 0;

    std::span<float> head(int h) const {
        return scores.subspan(std::size_t(h) * stride + begin, end - begin);
    }
    std::span<const float> same(std::span<const float> other, int h) const {
        return other.subspan(std::size_t(h) * stride + begin, end - begin);
    }
};

// score ·= norm / Σ_heads norm at the same token: the norm says which head needs it.
void weigh_by_norms(const CompetingScores& layer, std::span<const float> norms);

// Gives the layer's highest score, per head, to the fewest tokens whose mean attention secures `mass`
// (attention [kv_heads, stride], rescaled to sum 1 over the tokens before `end`; those before `begin` are
// secured already), at most `at_most` of them.
void secure_mass(const CompetingScores& layer, std::span<const float> attention, double mass,
                 std::size_t at_most);

}  // namespace holdfast
