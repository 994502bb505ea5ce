// How much of what the full model looks at methods kept, from step to step of its answer.
#pragma once

#include <cstdint>
#include <vector>

#include "analyze/perturbation.hpp"

namespace holdfast {

// Of one head: its retained importance, the share of its attention on the context that lies on kept entries.
struct HeadFragility {
    double mean = 0, least = 0;  // over the steps
    int worst_step = 0;          // the first with the least
    int collapses = 0;           // steps below the threshold times the mean
};

struct EvictedToken {
    std::uint32_t position = 0;
    double mass = 0;  // of the attention on the context
};

// Where something is retained worst, and which evicted tokens carried what is missing, most first.
struct WorstPlace {
    int step = 0;
    int layer = -1, head = -1;  // -1: all heads, their mean
    double retained = 1;
    std::vector<EvictedToken> evicted;
};

struct Fragility {
    std::vector<HeadFragility> heads;                 // [layers, heads]; of layers that evict nothing all 1
    std::vector<double> mean_by_step, least_by_step;  // over the heads
    WorstPlace worst_head, worst_step;

    double mean = 0;         // over heads and steps
    double mean_least = 0;   // mean over the heads of their least
    int collapses = 0;       // of all heads
    int most_collapses = 0;  // of one head
};

struct FragilityAnalysis {
    std::vector<int> answer;  // tokens
    std::vector<Fragility> kept;
};

FragilityAnalysis analyze_fragility(const GgufModel& model, Compute& compute, DecoderGraph& decoder,
                                    const AnswerSetting& setting, double threshold = 0.5);

}  // namespace holdfast
