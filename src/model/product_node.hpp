// Products with weights as nodes of a ggml graph.
#pragma once

#include <atomic>
#include <cstddef>

#include "ggml.h"
#include "model/model.hpp"

namespace holdfast {

// What an input is multiplied with.
struct Factor {
    const Linear* linear;
    const PackedMatrix* expanded;  // null: the weights as they are

    enum class Way { quantized, expanded, ggml };
    Way way() const {
        if (expanded != nullptr) return Way::expanded;
        return linear->quantized ? Way::quantized : Way::ggml;
    }
    // What products are divided by: groups of outputs or panels.
    int units() const {
        return expanded == nullptr ? linear->quantized.group_count() : expanded->panel_count();
    }
};

// Products of one input with several matrices, y = x · Wᵀ + b, all quantised or all expanded, as one node of
// a graph: less waiting than in one each. It lives as long as the graph.
class ProductNode {
  public:
    static constexpr int most_factors = 3;

    void add(const Factor& factor) { factors_[count_++] = factor; }

    // x [inputs, tokens] → the products one after another, each [outputs, tokens]. rows: row_bytes for the
    // quantised inputs, which nodes may share.
    ggml_tensor* build(ggml_context* context, ggml_tensor* x, std::byte* rows);
    static std::size_t row_bytes(int tokens, int inputs, int threads);

    void start_again();  // before the graph runs once more

  private:
    static void run(ggml_tensor* result, int thread, int threads, void* node);
    void run(const float* x, int tokens, int inputs, float* y, int thread, int threads);
    QuantizedRows quantize(const float* x, int tokens, int inputs, int thread, int threads);

    Factor factors_[most_factors];
    int count_ = 0;
    std::byte* rows_ = nullptr;
    std::atomic<int> next_task_{0};
    std::atomic<int> threads_done_{0};  // with their part of the quantised inputs
};

}  // namespace holdfast
