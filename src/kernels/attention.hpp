// Attention of query rows over a list of pages, for decoding, prefill and observation alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/page.hpp"

namespace holdfast {

// Online softmax advances in blocks of this many slots, counted from slot 0. A range that begins at a
// multiple of it gives the same bits however the rows were grouped.
constexpr std::uint32_t attention_block = 128;

// Some query rows of one KV head against slots [slot_begin, slot_end) of its pages.
struct AttentionTask {
    int rows = 0;
    int head_dim = 0;
    const float* query = nullptr;            // [rows, head_dim], rotated and multiplied by the scale
    const std::uint32_t* visible = nullptr;  // [rows]: row r attends to slots below visible[r] …
    const std::uint32_t* first = nullptr;    // [rows]: … from first[r] on; null: from 0
    float soft_cap = 0;                      // scores become cap · tanh(score / cap); 0: as they are
    const fp16_t* const* pages = nullptr;    // the whole list; slot s lies in pages[s / 32]
    std::uint32_t slot_begin = 0;            // a multiple of attention_block
    std::uint32_t slot_end = 0;
};

// Σ exp(score - maximum) · value, not yet divided by the sum. A row that saw no slot has maximum -inf and
// sum 0.
struct AttentionPartial {
    float* output = nullptr;   // [rows, head_dim rounded up to 32]
    float* maximum = nullptr;  // [rows]
    float* sum = nullptr;      // [rows]
};

constexpr int padded_head_dim(int head_dim) {
    return (head_dim + 31) / 32 * 32;
}
constexpr std::size_t attention_workspace(int rows, int head_dim) {  // floats, a multiple of 16
    return std::size_t(rows) * attention_block +
           std::size_t(page_tokens) * std::size_t(padded_head_dim(head_dim));
}

void attend(const AttentionTask& task, const AttentionPartial& result, float* workspace);

// The normalised output of one row from its partial results over consecutive slot ranges, in their order.
// output [head_dim]; partials [count]: of each, row `row`.
void combine_partials(std::span<const AttentionPartial> partials, int row, int head_dim, float* output);

// Scores, capped: scores[r · stride + s] = query[r] · key[s] for slots [slot_begin, slot_end), slot_begin a
// multiple of 32; stride at least slot_end rounded up to 32. workspace as for attend().
void score_slots(const AttentionTask& task, float* scores, std::size_t stride, float* workspace);

// Turns one row of raw scores into attention weights in place: softmax over its first `visible` of
// `count` slots, 0 behind them.
void softmax_row(float* scores, std::uint32_t visible, std::uint32_t count);

// Writes the key and value of one token, rounded to nearest fp16, into `slot` (0..31) of a page.
void store_token(fp16_t* page, int slot, int head_dim, const float* key, const float* value);

}  // namespace holdfast
