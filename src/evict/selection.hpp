// Choosing tokens of a head by their scores. Ties go to the lower position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

// The indices, rising, of the `count` best scores.
std::vector<std::uint32_t> best_tokens(std::span<const float> scores, std::size_t count);

// The count-th best score, and how many of the best `count` equal it. count: 1 to the number of scores.
struct Border {
    float score = 0;
    std::size_t ties = 0;
};
Border find_border(std::vector<float> scores, std::size_t count);

}  // namespace holdfast
