// What heads see of what methods kept, on the queries that they had with the full cache: CriticalKV's
// perturbation and DefensiveKV's retained importance (docs/analysis.md has the formulas).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "analyze/answer_trace.hpp"
#include "kernels/matmul.hpp"
#include "model/compute.hpp"

namespace holdfast {

// Of one query of one head. What comes behind the context is kept by every method.
struct KeptAttention {
    double mass = 0;      // σ: the attention on all that is kept
    double retained = 0;  // of the attention on the context, the share on what is kept of it
    double norm = 0;      // ‖o‖₁ of the full cache's output o behind the output projection
    double distance = 0;  // ‖o − o'‖₁, o' the output over what is kept, its weights made to sum up to 1
    double bound = 0;     // C − (2 − 1/σ) Σ_kept A‖vW‖₁, which the distance never exceeds
};

// One query of one head, the first `context` slots being the context.
struct HeadQuery {
    std::span<const float> weights;  // [slots] attention weights
    std::uint32_t context = 0;
    // What the output needs; without it norm, distance and bound stay 0.
    const float* values = nullptr;       // [slots, head_dim]
    const float* value_norms = nullptr;  // [slots] ‖v W‖₁, W the head's slice of the output projection
    const PackedMatrix* output = nullptr;  // the layer's output projection [hidden, heads · head_dim]
    int head = 0, head_dim = 0;
};

// kept: of each set, slots of the context, rising; results [sets].
void kept_attention(const HeadQuery& query, std::span<const std::span<const std::uint32_t>> kept,
                    KeptAttention* results);

// Calls visit(layer, values [sets, recorded steps, heads]) for each layer that evicts. kept: contexts as
// methods left them. outputs: whether norms, distances and bounds are wanted. Throws Error if a distance
// exceeds its bound by more than rounding.
void analyze_kept_attention(const GgufModel& model, Compute& compute, const AnswerTrace& trace,
                            std::span<const RaggedCache* const> kept, bool outputs,
                            const std::function<void(int, std::span<const KeptAttention>)>& visit);

}  // namespace holdfast
