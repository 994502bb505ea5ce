// The built-in allocators, and how many tokens they give whom. docs/methods/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/method.hpp"

namespace holdfast {

std::vector<AllocatorPart> builtin_allocators();

// Tokens that each head of layer `layer` keeps with `pyramid`; window: kept in any case.
std::uint32_t pyramid_tokens(int layer, int layers, std::uint32_t tokens, double tokens_per_head,
                             std::uint32_t window, double slope);

// Tokens of each head, ⌊tokens_per_head · heads⌋ together: b = ⌊tokens_per_head · (1 - 1/pool)⌋ each, and of
// the rest a share in proportion to `importance`; at least `least`, at most `tokens`. What a limit frees or
// takes goes to, or comes from, the others in proportion.
std::vector<std::uint32_t> share_by_importance(std::span<const double> importance, std::uint32_t tokens,
                                               double tokens_per_head, std::uint32_t least, double pool);

}  // namespace holdfast
