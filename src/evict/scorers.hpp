// The built-in scorers. One page each in docs/methods/.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/method.hpp"

namespace holdfast {

std::vector<ScorerPart> builtin_scorers();

// weigh: by the values' L2 norms.
std::unique_ptr<Scorer> make_expected_attention(std::uint32_t sinks, std::uint32_t future, bool weigh);

}  // namespace holdfast
