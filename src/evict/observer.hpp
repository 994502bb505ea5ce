// A layer in the cache, as eviction sees it: attention of queries over its keys, norms of its values.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "base/memory.hpp"
#include "holdfast/method.hpp"
#include "kernels/matmul.hpp"
#include "kernels/page.hpp"

namespace holdfast {

struct ObservedLayer {
    LayerShape shape;
    std::vector<const fp16_t* const*> pages;  // of each KV head
    // Of each KV head's slots, rising, the window's among them; none: slot = token.
    std::vector<std::span<const std::uint32_t>> positions = {};
    std::uint32_t window = 0;
    const float* window_queries = nullptr;  // [heads, window, head_dim]: the last queries, after rotation
    std::function<PackedMatrix()>
        output;  // the output projection, made when it is asked for: for exact value norms
    std::span<const PackedMatrix> grams;  // of each query head (pack_gram): for gram norms
};

// Runs task(index, thread) for every index of [0, count), spread over threads.
using ParallelFor = std::function<void(int count, const std::function<void(int index, int thread)>& task)>;

// Holds memory that is reused from layer to layer: the attention of one KV head's queries at a time.
class Observer final : public LayerView {
  public:
    Observer(ParallelFor parallel, int threads) : parallel_(std::move(parallel)), threads_(threads) {}

    // Results for the layer before are dropped.
    void show(ObservedLayer layer);

    const LayerShape& shape() const override { return layer_.shape; }
    std::span<const std::uint32_t> held(int head) const override {
        return layer_.positions.empty() ? std::span<const std::uint32_t>()
                                        : layer_.positions[std::size_t(head)];
    }
    void read_key(int head, std::uint32_t token, std::span<float> to) const override;
    void read_value(int head, std::uint32_t token, std::span<float> to) const override;
    const WindowSummary& window(std::uint32_t queries, int kernel) override;
    std::span<const float> value_norms(ValueNorm kind) override;
    void add_attention(const QueryChunk& queries, std::span<double> sum) override;
    void raise_attention(const QueryChunk& queries, std::uint32_t window, int kernel,
                         std::span<float> worst) override;
    void parallel(int count, const std::function<void(int, int)>& task) override { parallel_(count, task); }

    // Several users look at one layer one after another; what one of them had computed took as long for each
    // that looks at it. borrowed_seconds(): of this user, for what others had computed.
    void begin_user() {
        ++user_;
        borrowed_seconds_ = 0;
    }
    double borrowed_seconds() const { return borrowed_seconds_; }

    // Memory for observing windows of this many queries.
    static std::size_t bytes_for(const LayerShape& shape, std::uint32_t window, int threads);
    // Memory for add_attention().
    static std::size_t watching_bytes_for(const LayerShape& shape, int threads);

  private:
    struct Cost {
        int user = 0;  // the last that it counts for
        double seconds = 0;
    };
    struct Window {
        std::uint32_t queries;
        int kernel;
        WindowSummary summary;
        Cost cost;
    };

    std::uint32_t slots_of(int head) const;
    // The slot of a head's token; slots_of(head) if it isn't there.
    std::uint32_t slot_of(int head, std::uint32_t token) const;
    void refuse_watching() const;
    void borrow(Cost& cost);
    void reserve(int rows);
    float* workspace(int thread, int rows) const;
    // weights_ = softmax of queries_ [rows, head_dim] over the slots below visible(row), of one KV head.
    void attend(int head, int rows, std::uint32_t slots, const std::function<std::uint32_t(int)>& visible);
    void summarize(int head, Window& window);
    void summarize(int head, int first, int count, Window& window);  // of these query heads of the KV head's
    // Blocks of a chunk's queries, head by head: use(head, rows, slots) finds their attention in weights_.
    void for_each_block(const QueryChunk& chunk,
                        const std::function<void(int head, int rows, std::uint32_t slots)>& use);

    ParallelFor parallel_;
    int threads_;
    ObservedLayer layer_;
    std::list<Window> windows_;  // of this layer; addresses stay
    std::vector<float> norms_;   // of this layer; empty: not computed yet
    ValueNorm norms_kind_ = ValueNorm::exact;
    Cost norms_cost_;
    int user_ = 0;
    double borrowed_seconds_ = 0;

    Buffer weights_;     // [rows, tokens rounded up to 32]
    Buffer queries_;     // [rows, head_dim], scaled
    Buffer workspaces_;  // one a thread
    std::vector<float> rescale_;
};

}  // namespace holdfast
