#include "model/product_node.hpp"

#include <algorithm>
#include <span>
#include <thread>

namespace holdfast {

namespace {

// Products with few tokens are bound by memory: rounding their inputs to 15 bits costs no time. Each thread
// does that for itself, which takes less than waiting for another.
bool few(int tokens) {
    return tokens <= 4;
}

// Calls run(index, begin, end) for what [begin, end) covers of the factors' units, counted one factor after
// another.
template <class Run>
void for_factors(std::span<const Factor> factors, int begin, int end, const Run& run) {
    int first = 0;
    for (std::size_t i = 0; i < factors.size() && first < end; ++i) {
        const int count = factors[i].units();
        const int from = std::max(begin, first), to = std::min(end, first + count);
        if (from < to) run(i, from - first, to - first);
        first += count;
    }
}

}  // namespace

std::size_t ProductNode::row_bytes(int tokens, int inputs, int threads) {
    return few(tokens) ? QuantizedRows::bytes(tokens, inputs, 15) * std::size_t(threads)
                       : QuantizedRows::bytes(tokens, inputs, 8);
}

ggml_tensor* ProductNode::build(ggml_context* context, ggml_tensor* x, std::byte* rows) {
    rows_ = rows;
    std::int64_t outputs = 0;
    for (int i = 0; i < count_; ++i) outputs += factors_[i].linear->outputs();
    return ggml_custom_4d(context, GGML_TYPE_F32, outputs * x->ne[1], 1, 1, 1, &x, 1, run, GGML_N_TASKS_MAX,
                          this);
}

void ProductNode::start_again() {
    next_task_ = 0;
    threads_done_ = 0;
}

void ProductNode::run(ggml_tensor* result, int thread, int threads, void* node) {
    const ggml_tensor* x = result->src[0];
    static_cast<ProductNode*>(node)->run(static_cast<const float*>(x->data), int(x->ne[1]), int(x->ne[0]),
                                         static_cast<float*>(result->data), thread, threads);
}

void ProductNode::run(const float* x, int tokens, int inputs, float* y, int thread, int threads) {
    const std::span<const Factor> factors(factors_, std::size_t(count_));
    const bool quantized = factors[0].way() == Factor::Way::quantized;
    float* out[most_factors];
    int units = 0;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        out[i] = y;
        y += std::size_t(factors[i].linear->outputs()) * std::size_t(tokens);
        units += factors[i].units();
    }

    QuantizedRows rows;
    if (quantized) rows = quantize(x, tokens, inputs, thread, threads);
    constexpr int rows_of_task = 96;
    const int units_of_task = std::max(1, quantized ? units / (8 * threads) : std::min(8, units / threads));
    const int row_tasks = (tokens + rows_of_task - 1) / rows_of_task;
    const int unit_tasks = std::max(1, (units + units_of_task - 1) / units_of_task);
    for (int task; (task = next_task_.fetch_add(1, std::memory_order_relaxed)) < row_tasks * unit_tasks;) {
        const int row = task / unit_tasks * rows_of_task, begin = task % unit_tasks * units_of_task;
        const int count = std::min(rows_of_task, tokens - row);
        for_factors(
            factors, begin, std::min(units, begin + units_of_task), [&](std::size_t i, int from, int to) {
                const auto& [linear, expanded] = factors[i];
                const float* bias = linear->bias_data();
                const std::size_t stride = std::size_t(linear->outputs()), width = std::size_t(inputs);
                float* to_rows = out[i] + std::size_t(row) * stride;
                if (quantized)
                    quantized_product(linear->quantized, from, to, count, rows.from(row), bias, to_rows,
                                      stride);
                else
                    matmul(count, x + std::size_t(row) * width, width, *expanded, from, to, bias, to_rows,
                           stride);
            });
    }
}

QuantizedRows ProductNode::quantize(const float* x, int tokens, int inputs, int thread, int threads) {
    const std::size_t stride = std::size_t(inputs);
    if (few(tokens)) {
        const std::size_t bytes = QuantizedRows::bytes(tokens, inputs, 15);
        const QuantizedRows own = QuantizedRows::at(rows_ + std::size_t(thread) * bytes, tokens, inputs, 15);
        quantize_rows(tokens, x, stride, own);
        return own;
    }
    const QuantizedRows all = QuantizedRows::at(rows_, tokens, inputs, 8);
    const auto first = [&](int t) { return int(std::int64_t(tokens) * t / threads); };
    const int begin = first(thread);
    quantize_rows(first(thread + 1) - begin, x + std::size_t(begin) * stride, stride, all.from(begin));
    threads_done_.fetch_add(1, std::memory_order_acq_rel);
    while (threads_done_.load(std::memory_order_acquire) < threads) std::this_thread::yield();
    return all;
}

}  // namespace holdfast
