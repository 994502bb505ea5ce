#include "engine/session.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "holdfast/error.hpp"

namespace holdfast {

void check_room(const RaggedCache& cache, std::size_t tokens, std::uint32_t context_length) {
    if (cache.next_position() + tokens > context_length)
        throw Error("the question ends beyond the " + std::to_string(context_length) +
                        " tokens that the model reads; shorten the document or the question",
                    Error::Kind::usage);
}

std::span<const float> read_tokens(DecoderGraph& decoder, std::span<const int> tokens, RaggedCache& cache,
                                   std::uint32_t context_length, Recording last) {
    constexpr std::size_t block_tokens = 64;
    check_room(cache, tokens.size(), context_length);
    std::span<const float> logits;
    for (std::size_t i = 0; i < tokens.size(); i += block_tokens) {
        const auto block = tokens.subspan(i, std::min(block_tokens, tokens.size() - i));
        logits = decoder.run(block, cache, i + block.size() == tokens.size() ? last : Recording());
    }
    return logits;
}

std::span<const float> TokenSession::read(std::span<const int> tokens) {
    return read_tokens(decoder_, tokens, cache_, context_length_);
}

int TokenSession::answer(std::span<const float> logits, int most,
                         const std::function<bool(int token)>& on_token) {
    int said = 0;
    while (said < most) {
        const int token = sampler_.choose(logits);
        ++said;
        if (!on_token(token) || said == most || cache_.next_position() >= context_length_) break;
        logits = decoder_.run({&token, 1}, cache_);
    }
    return said;
}

int Sampler::choose(std::span<const float> logits) {
    const auto best = std::max_element(logits.begin(), logits.end());
    if (sampling_.temperature <= 0) return int(best - logits.begin());
    std::vector<double> weights(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
        weights[i] = std::exp(double(logits[i] - *best) / double(sampling_.temperature));
    return std::discrete_distribution<int>(weights.begin(), weights.end())(random_);
}

}  // namespace holdfast
