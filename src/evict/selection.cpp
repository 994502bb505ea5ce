#include "evict/selection.hpp"

#include <algorithm>
#include <functional>

namespace holdfast {

Border find_border(std::vector<float> scores, std::size_t count) {
    const auto nth = scores.begin() + std::ptrdiff_t(count - 1);
    std::nth_element(scores.begin(), nth, scores.end(), std::greater<>());
    return {*nth, std::size_t(std::count(scores.begin(), nth + 1, *nth))};
}

std::vector<std::uint32_t> best_tokens(std::span<const float> scores, std::size_t count) {
    std::vector<std::uint32_t> best;
    if (count == 0) return best;
    count = std::min(count, scores.size());
    Border border = find_border({scores.begin(), scores.end()}, count);
    best.reserve(count);
    for (std::uint32_t j = 0; j < scores.size(); ++j)
        if (scores[j] > border.score || (scores[j] == border.score && border.ties > 0)) {
            if (scores[j] == border.score) --border.ties;
            best.push_back(j);
        }
    return best;
}

}  // namespace holdfast
