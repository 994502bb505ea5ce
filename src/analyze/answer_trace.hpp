// An answer with the full cache, its queries recorded: what heads looked at, and what they would have seen
// in a compressed cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/ragged_cache.hpp"
#include "model/compute.hpp"
#include "model/decoder_graph.hpp"
#include "model/model.hpp"

namespace holdfast {

struct AnswerTrace {
    RaggedCache cache;  // nothing evicted (in sliding layers: what is seen), slot = position elsewhere:
                        // context, question, and answer as far as it was read
    std::uint32_t context_tokens = 0;
    std::uint32_t first_slot = 0;             // of the query of the first step
    std::vector<int> tokens;                  // [steps]: what each step produced
    std::vector<std::vector<float>> queries;  // [steps][layers, heads, head_dim], rotated

    std::size_t steps() const { return tokens.size(); }
    std::uint32_t slot(std::size_t step) const { return first_slot + std::uint32_t(step); }
    const float* query(const Model& model, std::size_t step, int layer) const {
        const HyperParameters& p = model.parameters();
        return queries[step].data() + std::size_t(layer) * std::size_t(p.heads) * std::size_t(p.head_dim);
    }
};

// Greedy, at most `most` tokens. context: read with the full cache; tokens: what comes before the answer,
// at least one. stop(token): whether it ends the answer; such a token is not part of it.
AnswerTrace trace_answer(const Model& model, DecoderGraph& decoder, const RaggedCache& context,
                         std::span<const int> tokens, int most, const std::function<bool(int)>& stop);

// Attention weights [query heads of the group, slots] of a step's queries in one KV head of the full cache;
// not of a sliding layer.
std::vector<float> attention_weights(const Model& model, const AnswerTrace& trace, std::size_t step,
                                     int layer, int kv_head);

// For each layer, ‖attention output with the full cache − with what `kept` kept of the context‖₁ after the
// output projection, on the same queries: mean over the steps, of which there must be one.
std::vector<double> output_perturbation(const Model& model, Compute& compute, const AnswerTrace& trace,
                                        const RaggedCache& kept);

}  // namespace holdfast
