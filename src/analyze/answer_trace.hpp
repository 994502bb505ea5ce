// An answer with the full cache, its queries recorded: what heads looked at.
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

// Greedy, token by token; a step reads the last token and produces the next. The queries of the last steps
// alone are kept, so that memory doesn't grow with the answer.
class AnswerTrace {
  public:
    // context: read with the full cache; tokens: what comes before the answer, at least one. Throws Error if
    // they exceed the context length. stop(token): whether it ends the answer; such a token is not part of
    // it.
    AnswerTrace(const GgufModel& model, DecoderGraph& decoder, const RaggedCache& context,
                std::span<const int> tokens, std::function<bool(int)> stop);

    // Takes up to `most` more steps, fewer where the answer or the model's context ends, and forgets the
    // queries of those before. False if there were none.
    bool advance(int most);

    // Nothing evicted (in sliding layers: what is seen), slot = position elsewhere: context, what came before
    // the answer, and the answer as far as it was read.
    const RaggedCache& cache() const { return cache_; }
    std::uint32_t context_tokens() const { return context_tokens_; }
    const std::vector<int>& tokens() const { return tokens_; }  // what each step produced
    std::size_t steps() const { return tokens_.size(); }
    std::size_t first_recorded() const { return tokens_.size() - queries_.size(); }

    // Of the query of a step.
    std::uint32_t slot(std::size_t step) const { return first_slot_ + std::uint32_t(step); }
    // The rotated queries [heads, head_dim] of a recorded step in a layer.
    const float* query(std::size_t step, int layer) const;

  private:
    void take(std::span<const float> logits);

    const GgufModel& model_;
    DecoderGraph& decoder_;
    RaggedCache cache_;
    std::function<bool(int)> stop_;
    std::uint32_t context_tokens_, first_slot_ = 0;
    int next_ = 0;  // what the last step produced
    bool ended_ = false;
    std::vector<float> first_queries_;
    std::vector<int> tokens_;
    std::vector<std::vector<float>> queries_;  // [recorded steps][layers, heads, head_dim]
};

// Attention weights [query heads of the group, slots up to the step's own] of a recorded step in one KV head
// of the full cache; not of a sliding layer.
std::vector<float> attention_weights(const GgufModel& model, const AnswerTrace& trace, std::size_t step,
                                     int layer, int kv_head);

}  // namespace holdfast
