#include "evict/cascade.hpp"

#include <algorithm>
#include <functional>

namespace holdfast {

void Cascade::add_layer(std::span<const float> scores, const Retain& retain) {
    const std::size_t past = scores.size() / kv_heads_;
    for (std::uint32_t h = 0; h < kv_heads_; ++h)
        heads_.emplace_back(scores.begin() + std::ptrdiff_t(h * past),
                            scores.begin() + std::ptrdiff_t((h + 1) * past));

    std::vector<float> all;
    for (const std::vector<float>& head : heads_) all.insert(all.end(), head.begin(), head.end());
    if (all.size() <= capacity_) return;

    // The capacity-th best score, and how many entries that equal it still fit.
    float threshold = 0;
    std::size_t ties = 0;
    if (capacity_ > 0) {
        const auto nth = all.begin() + std::ptrdiff_t(capacity_ - 1);
        std::nth_element(all.begin(), nth, all.end(), std::greater<>());
        threshold = *nth;
        ties = std::size_t(std::count(all.begin(), nth + 1, threshold));
    }

    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < heads_.size(); ++i) {
        std::vector<float>& head = heads_[i];
        kept.clear();
        for (std::uint32_t j = 0; j < head.size(); ++j) {
            const bool equal = capacity_ > 0 && head[j] == threshold;
            if (capacity_ > 0 && (head[j] > threshold || (equal && ties > 0))) {
                if (equal) --ties;
                kept.push_back(j);
            }
        }
        if (kept.size() == head.size()) continue;
        retain(std::uint32_t(i / kv_heads_), std::uint32_t(i % kv_heads_), kept);
        for (std::size_t k = 0; k < kept.size(); ++k) head[k] = head[kept[k]];
        head.resize(kept.size());
        if (head.capacity() > 2 * head.size()) head.shrink_to_fit();
    }
}

}  // namespace holdfast
