// The decoder as a ggml graph: one builder for all architectures, driven by hyper-parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/ragged_cache.hpp"
#include "holdfast/method.hpp"
#include "model/attention_node.hpp"
#include "model/model.hpp"

namespace holdfast {

// Runs one layer over many tokens: prefill, layer by layer.
class LayerGraph {
  public:
    LayerGraph(const GgufModel& model, Compute& compute);
    ~LayerGraph();

    enum class Result { cache, cache_and_hidden };

    // hidden [tokens, hidden], updated in place if that is wanted: `tokens` tokens from first_position on,
    // whose entries the cache's layer gets at its end. queries [tokens, heads, head_dim]: gets the rotated
    // queries, or null.
    void run(const ExpandedLayer& weights, int layer, float* hidden, int tokens, std::uint32_t first_position,
             RaggedCache& cache, float* queries = nullptr, Result result = Result::cache_and_hidden);

    // Memory that a run over `tokens` tokens takes.
    static std::size_t bytes_for(const GgufModel& model, int tokens, int threads);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// What to write down of a run, or null.
struct Recording {
    float* queries = nullptr;  // of the last `tokens` tokens [layers, tokens, heads, head_dim], rotated
    float* hidden = nullptr;   // of the last token [layers, hidden], behind each layer
    std::size_t tokens = 1;
};

// Runs all layers over some tokens, with the weights as they are in the file: questions and answers.
class DecoderGraph {
  public:
    DecoderGraph(const GgufModel& model, Compute& compute);
    ~DecoderGraph();

    // Appends the tokens to the cache, at its next positions, and returns the logits after the last one
    // [vocabulary]; valid until the next run.
    std::span<const float> run(std::span<const int> tokens, RaggedCache& cache, Recording recording = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// A layer's rotation, as ggml computes it at position 1.
Rotation measure_rotation(const GgufModel& model, Compute& compute, int layer);

// The logits [vocabulary] of one token's hidden state after the last layer [hidden].
std::vector<float> final_logits(const GgufModel& model, Compute& compute, float* hidden);

}  // namespace holdfast
