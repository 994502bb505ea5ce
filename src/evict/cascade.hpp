// Layer-wise budgets, exactly, one layer at a time: of all layers' entries the best `capacity` by score.
//
// An entry that is not among the best of the layers seen so far can't be among the best of all. So after
// each layer what fell out is dropped at once, and no more than the budget and one layer ever exists.
// Ties: higher score, then lower layer, head, position.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace holdfast {

class Cascade {
  public:
    // capacity: entries over all layers; those that are kept in any case don't take part.
    Cascade(std::uint32_t kv_heads, std::size_t capacity) : kv_heads_(kv_heads), capacity_(capacity) {}

    // Called for every head that lost entries. kept: indices, rising, into the `before` entries that the head
    // had until then.
    using Retain = std::function<void(std::uint32_t layer, std::uint32_t head,
                                      std::span<const std::uint32_t> kept, std::uint32_t before)>;

    // scores [kv_heads, competing tokens] of the next layer.
    void add_layer(std::span<const float> scores, const Retain& retain);

  private:
    std::uint32_t kv_heads_;
    std::size_t capacity_;
    std::vector<std::vector<float>> heads_;  // [layer · kv_heads + head]: the scores of what is still kept
};

}  // namespace holdfast
