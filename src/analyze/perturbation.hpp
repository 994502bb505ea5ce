// How far what methods kept moves the model's outputs while it gives the answer of the full cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "analyze/kept_attention.hpp"
#include "cache/ragged_cache.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

// What an analysis of an answer works on.
struct AnswerSetting {
    const RaggedCache& context;                // read with the full cache
    std::span<const RaggedCache* const> kept;  // the same, as methods left it
    std::span<const int> question;  // what comes between the context and the answer, at least one token
    int most_steps = 200;           // of the answer
    std::function<bool(int)> ends_answer;
    std::function<void(int steps)> progress = {};  // after every block of steps
};

// Means over the steps. Layers that evict nothing have zeros.
struct HeadPerturbation {
    double distance = 0;  // ‖o − o'‖₁ behind the output projection, on the full model's queries
    double relative = 0;  // to ‖o‖₁
    double bound = 0;     // of the distance
    double mass = 0;      // σ
    double majority = 0;  // share of the steps with σ above 1/2
};

struct Perturbation {
    std::vector<HeadPerturbation> heads;   // [layers, heads]
    std::vector<double> relative_by_step;  // mean over the heads
    // The model really running on what is kept, fed the same tokens: ‖h − h'‖₁ of the hidden states behind
    // each layer, mean over the steps, and relative to ‖h‖₁.
    std::vector<double> hidden, hidden_relative;  // [layers]

    double mean(double HeadPerturbation::*value) const;  // over the heads of layers that evict
};

struct PerturbationAnalysis {
    std::vector<int> answer;         // tokens
    std::vector<Perturbation> kept;  // of each kept set
};

PerturbationAnalysis analyze_perturbation(const GgufModel& model, Compute& compute, DecoderGraph& decoder,
                                          const AnswerSetting& setting);

// Layers that evict, rising.
std::vector<int> evicting_layers(const HyperParameters& parameters);

// Gives the full cache's answer, whose tokens it returns, and calls on_block after every few steps: their
// queries are recorded then. Throws Error if there is no answer.
std::vector<int> trace_answer(const GgufModel& model, DecoderGraph& decoder, const AnswerSetting& setting,
                              const std::function<void(const AnswerTrace&)>& on_block);

}  // namespace holdfast
