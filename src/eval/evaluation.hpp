// Runs samples through many methods and budgets, one reading for all of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/context.hpp"
#include "eval/results.hpp"
#include "eval/samples.hpp"
#include "model/decoder_graph.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {

// Takes tokens out so that a prompt of `context` tokens and `behind` more behind them fills `room`: its first
// and last halves stay. tokens: begin with the context. Returns how many went; none where the prompt fits, or
// what is behind the context takes all the room.
std::size_t cut_middle(std::vector<int>& tokens, std::size_t context, std::size_t behind, std::size_t room);

struct EvaluationSettings {
    bool question_aware = false;  // compress with the question known
};

class Evaluation {
  public:
    Evaluation(const GgufModel& model, const Tokenizer& tokenizer, Compute& compute,
               EvaluationSettings settings)
        : model_(model),
          tokenizer_(tokenizer),
          compute_(compute),
          decoder_(model, compute),
          settings_(settings) {}

    std::size_t prompt_tokens(const Sample& sample) const;
    // Returns a hash of a sample's prompt as this evaluation reads it and of how it is answered and scored:
    // results are found again by it. Throws Error if the prompt and the longest answer don't fit the model's
    // context, nothing is asked, or what the metric needs isn't there.
    std::string check(const Sample& sample) const;
    // Hands over each request's result as it comes, in their order.
    void run(const Sample& sample, const std::vector<CompressionRequest>& requests,
             const std::function<void(SampleResult)>& on_result,
             const std::function<void(const ReadProgress&)>& progress = {});

  private:
    struct Tokens {
        std::vector<int> context, rest;
        std::size_t cut = 0;  // from the context's middle
        bool chat = false;
    };
    Tokens tokens_of(const Sample& sample) const;
    static std::string hash_of(const Sample& sample, const Tokens& tokens);

    const GgufModel& model_;
    const Tokenizer& tokenizer_;
    Compute& compute_;
    DecoderGraph decoder_;
    EvaluationSettings settings_;
};

}  // namespace holdfast
