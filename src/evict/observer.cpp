#include "evict/observer.hpp"

#include <algorithm>

#include "evict/window_attention.hpp"
#include "kernels/attention.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {

namespace {

constexpr std::uint32_t columns_of_task = 1024;

std::size_t row_stride(std::uint32_t tokens) {
    return pages_for(tokens) * page_tokens;
}

}  // namespace

DefensiveInput Observer::observe(const LayerView& layer) {
    const int rows = layer.group * int(settings_.window);
    weights_.reserve(std::size_t(rows) * row_stride(layer.tokens) * sizeof(float));
    queries_.reserve(std::size_t(rows) * std::size_t(layer.head_dim) * sizeof(float));
    workspaces_.reserve(attention_workspace(rows, layer.head_dim) * std::size_t(threads_) * sizeof(float));
    rescale_.resize(std::size_t(rows));

    DefensiveInput result;
    result.kv_heads = std::uint32_t(layer.kv_heads);
    result.past = layer.tokens - settings_.window;
    const std::size_t entries = std::size_t(result.kv_heads) * result.past;
    result.risk.resize(entries);
    result.mean_attention.resize(entries);
    result.vnorm.resize(entries);
    for (int head = 0; head < layer.kv_heads; ++head) observe_attention(layer, head, result);
    observe_values(layer, result);
    return result;
}

void Observer::observe_attention(const LayerView& layer, int head, DefensiveInput& result) {
    const int window = int(settings_.window), rows = layer.group * window;
    const std::size_t stride = row_stride(layer.tokens);
    const float* from = layer.queries + std::size_t(head) * std::size_t(rows) * std::size_t(layer.head_dim);
    for (int i = 0; i < rows * layer.head_dim; ++i) queries_.as<float>()[i] = from[i] * layer.scale;

    const int tasks = int((layer.tokens + columns_of_task - 1) / columns_of_task);
    parallel_(tasks, [&](int index, int thread) {
        AttentionTask task;
        task.rows = rows;
        task.head_dim = layer.head_dim;
        task.query = queries_.as<float>();
        task.pages = layer.pages[std::size_t(head)];
        task.slot_begin = std::uint32_t(index) * columns_of_task;
        task.slot_end = std::min(layer.tokens, task.slot_begin + columns_of_task);
        score_slots(
            task, weights_.as<float>(), stride,
            workspaces_.as<float>() + std::size_t(thread) * attention_workspace(rows, layer.head_dim));
    });

    const WindowAttention attention{weights_.as<float>(), stride, rows, result.past, settings_.window};
    parallel_(rows, [&](int r, int) {
        float* row = weights_.as<float>() + std::size_t(r) * stride;
        softmax_row(row, result.past + std::uint32_t(r % window) + 1, layer.tokens);
        rescale_[std::size_t(r)] = pooled_rescale({row, result.past}, settings_.kernel);
    });

    const std::size_t offset = result.at(std::uint32_t(head), 0);
    parallel_(int((result.past + columns_of_task - 1) / columns_of_task), [&](int index, int) {
        const std::uint32_t begin = std::uint32_t(index) * columns_of_task;
        reduce_columns(attention, rescale_, settings_.kernel, begin,
                       std::min(result.past, begin + columns_of_task), result.risk.data() + offset,
                       result.mean_attention.data() + offset);
    });
    result.window_mass += window_mass(attention, settings_.reference) / layer.kv_heads;
}

void Observer::observe_values(const LayerView& layer, DefensiveInput& result) {
    const int pages = int(pages_for(result.past));
    const std::size_t workspace = attention_workspace(layer.group * int(settings_.window), layer.head_dim);
    parallel_(pages * layer.kv_heads, [&](int index, int thread) {
        const int head = index / pages, page = index % pages;
        const std::uint32_t begin = std::uint32_t(page) * page_tokens;
        projected_value_norms(layer.pages[std::size_t(head)][page],
                              int(std::min<std::uint32_t>(page_tokens, result.past - begin)), layer.head_dim,
                              layer.output, head * layer.group, layer.group,
                              result.vnorm.data() + result.at(std::uint32_t(head), begin),
                              workspaces_.as<float>() + std::size_t(thread) * workspace);
    });
}

std::size_t Observer::bytes_for(int kv_heads, int group, int head_dim, std::uint32_t tokens,
                                std::uint32_t window, int threads) {
    const int rows = group * int(window);
    const std::size_t layer_results =
        std::size_t(4) * std::size_t(kv_heads) * tokens;  // risk, mean, norms, scores
    return (std::size_t(rows) * (row_stride(tokens) + std::size_t(head_dim)) + layer_results +
            attention_workspace(rows, head_dim) * std::size_t(threads)) *
           sizeof(float);
}

}  // namespace holdfast
