#include "evict/cascade.hpp"

#include <algorithm>
#include <utility>

#include "evict/selection.hpp"

namespace holdfast {

void Cascade::add_layer(std::span<const float> scores, const Retain& retain) {
    const std::size_t tokens = scores.size() / kv_heads_;
    for (std::uint32_t h = 0; h < kv_heads_; ++h)
        heads_.emplace_back(scores.begin() + std::ptrdiff_t(h * tokens),
                            scores.begin() + std::ptrdiff_t((h + 1) * tokens));

    std::vector<float> all;
    all.reserve(std::min(capacity_, heads_.size() * tokens) + scores.size());
    for (const std::vector<float>& head : heads_) all.insert(all.end(), head.begin(), head.end());
    if (all.size() <= capacity_) return;

    Border border;
    if (capacity_ > 0) border = find_border(std::move(all), capacity_);

    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < heads_.size(); ++i) {
        std::vector<float>& head = heads_[i];
        kept.clear();
        for (std::uint32_t j = 0; j < head.size(); ++j) {
            const bool equal = capacity_ > 0 && head[j] == border.score;
            if (capacity_ > 0 && (head[j] > border.score || (equal && border.ties > 0))) {
                if (equal) --border.ties;
                kept.push_back(j);
            }
        }
        if (kept.size() == head.size()) continue;
        retain(std::uint32_t(i / kv_heads_), std::uint32_t(i % kv_heads_), kept, std::uint32_t(head.size()));
        for (std::size_t k = 0; k < kept.size(); ++k) head[k] = head[kept[k]];
        head.resize(kept.size());
        if (head.capacity() > 2 * head.size()) head.shrink_to_fit();
    }
}

}  // namespace holdfast
