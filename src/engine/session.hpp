#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>

#include "cache/ragged_cache.hpp"
#include "holdfast/options.hpp"
#include "model/decoder_graph.hpp"

namespace holdfast {

// Throws Error (usage) if so many more tokens exceed the context length.
void check_room(const RaggedCache& cache, std::size_t tokens, std::uint32_t context_length);

// Reads tokens in blocks, which bounds the memory that a long question takes, and returns the logits after
// the last one, which `last` is recorded of. Throws Error if the tokens exceed the context length.
std::span<const float> read_tokens(DecoderGraph& decoder, std::span<const int> tokens, RaggedCache& cache,
                                   std::uint32_t context_length, Recording last = {});

// Chooses the next token by its logits.
class Sampler {
  public:
    explicit Sampler(Sampling sampling) : sampling_(sampling), random_(sampling.seed) {}
    int choose(std::span<const float> logits);

  private:
    Sampling sampling_;
    std::mt19937_64 random_;
};

// One line of questions and answers on a context. Contexts are shared, not copied; what a session reads
// and says is its own.
class TokenSession {
  public:
    TokenSession(DecoderGraph& decoder, const RaggedCache& context, std::uint32_t context_length,
                 Sampling sampling)
        : decoder_(decoder), cache_(context), context_length_(context_length), sampler_(sampling) {}

    // Reads tokens and returns the logits after the last one; throws Error if they exceed the context length.
    std::span<const float> read(std::span<const int> tokens);

    // Says at most `most` tokens, each handed to on_token, until on_token returns false or the context length
    // is reached. logits: after what was read. Returns the number of tokens said.
    int answer(std::span<const float> logits, int most, const std::function<bool(int token)>& on_token);

    const RaggedCache& cache() const { return cache_; }

  private:
    DecoderGraph& decoder_;
    RaggedCache cache_;
    std::uint32_t context_length_;
    Sampler sampler_;
};

}  // namespace holdfast
