// DefensiveKV's scores of a layer: worst-case risk with a prior floor, refined by CriticalKV's projected
// value norms. Formulas and their sources: docs/methods/defensive.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

struct DefensiveSettings {
    std::uint32_t window = 32;  // w: the last queries, observed and always kept
    int kernel = 5;             // κ: neighbours that are averaged
    double mass = 0.9;          // attention mass that the first stage secures
    bool reference = false;     // the published code's window mass, to reproduce its numbers
};

// One layer's observation, [kv_heads, past] each.
struct DefensiveInput {
    std::uint32_t kv_heads = 0;
    std::uint32_t past = 0;
    std::vector<float> risk;            // worst case over query heads and window queries
    std::vector<float> mean_attention;  // mean over both
    std::vector<float> vnorm;           // projected value norms
    double window_mass = 0;             // mean over KV heads

    std::size_t at(std::uint32_t head, std::uint32_t token) const { return std::size_t(head) * past + token; }
};

struct DefensiveScores {
    std::vector<float> past;  // [kv_heads, past]
    float highest = 0;        // of the layer: the score of forced entries and of the window
};

// tokens_per_head: n·ρ, the budget's kept tokens per KV head on average (n = past + window).
DefensiveScores defensive_scores(const DefensiveInput& input, const DefensiveSettings& settings,
                                 double tokens_per_head);

}  // namespace holdfast
