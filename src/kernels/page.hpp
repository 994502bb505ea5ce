// A page: the keys and values of up to 32 tokens of one (layer, KV head), fp16.
//   keys   [head_dim, 32]   transposed: a query reads keys down the columns, without horizontal sums
//   values [32, head_dim]
// Slot s of a list of pages is column (and row) s % 32 of page s / 32.
#pragma once

#include <cstddef>

#include "base/fp16.hpp"

namespace holdfast {

constexpr int page_tokens = 32;

constexpr std::size_t page_elements(int head_dim) {
    return std::size_t(2) * page_tokens * std::size_t(head_dim);
}
constexpr std::size_t page_bytes(int head_dim) {
    return page_elements(head_dim) * sizeof(fp16_t);
}

inline fp16_t* page_keys(fp16_t* page) {
    return page;
}
inline const fp16_t* page_keys(const fp16_t* page) {
    return page;
}
inline fp16_t* page_values(fp16_t* page, int head_dim) {
    return page + page_tokens * head_dim;
}
inline const fp16_t* page_values(const fp16_t* page, int head_dim) {
    return page + page_tokens * head_dim;
}

constexpr std::size_t pages_for(std::size_t tokens) {
    return (tokens + page_tokens - 1) / page_tokens;
}

}  // namespace holdfast
