#pragma once

#include <cstdint>
#include <vector>

#include "base/memory.hpp"

namespace holdfast {

// Hidden states of a context's tokens between two layers: fp16, like the cache, each token's divided by a
// power of two that brings its largest element near fp16's largest. Rounding moves an element by 2^-11 of
// itself at the most (2^-39 of the token's largest, if that is more).
class HiddenStates {
  public:
    HiddenStates(std::uint32_t tokens, int width);

    // state [width] is scaled in place.
    void store(std::uint32_t token, float* state);
    void load(std::uint32_t token, float* state) const;

    static std::size_t bytes_for(std::uint32_t tokens, int width);

  private:
    std::size_t width_;
    Buffer elements_;                     // fp16 [tokens, width]
    std::vector<std::int8_t> exponents_;  // [tokens]
};

}  // namespace holdfast
