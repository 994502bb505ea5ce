// Observes one layer after its prefill: the attention of the last queries over all its keys, and the
// projected norms of its values.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/memory.hpp"
#include "evict/defensive.hpp"
#include "kernels/matmul.hpp"
#include "kernels/page.hpp"

namespace holdfast {

// A layer as its prefill left it: slot = position, the same tokens in every KV head.
struct LayerView {
    int kv_heads = 0;
    int group = 0;  // query heads of a KV head
    int head_dim = 0;
    float scale = 1;
    std::uint32_t tokens = 0;                 // n, more than the window
    std::vector<const fp16_t* const*> pages;  // of each KV head
    const float* queries = nullptr;           // [kv_heads · group, window, head_dim], after rotation
    PackedMatrix output;                      // the output projection
};

// Runs task(index, thread) for every index of [0, count), spread over threads.
using ParallelFor = std::function<void(int count, const std::function<void(int index, int thread)>& task)>;

// Memory that is reused from layer to layer: the window's attention of one KV head at a time.
class Observer {
  public:
    Observer(const DefensiveSettings& settings, ParallelFor parallel, int threads)
        : settings_(settings), parallel_(std::move(parallel)), threads_(threads) {}

    DefensiveInput observe(const LayerView& layer);

    static std::size_t bytes_for(int kv_heads, int group, int head_dim, std::uint32_t tokens,
                                 std::uint32_t window, int threads);

  private:
    void observe_attention(const LayerView& layer, int head, DefensiveInput& result);
    void observe_values(const LayerView& layer, DefensiveInput& result);

    DefensiveSettings settings_;
    ParallelFor parallel_;
    int threads_;
    Buffer weights_;     // [group · window, tokens rounded up to 32]
    Buffer queries_;     // [group · window, head_dim], scaled
    Buffer workspaces_;  // one a thread
    std::vector<float> rescale_;
};

}  // namespace holdfast
