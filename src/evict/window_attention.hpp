// What the last queries of a layer saw: attention weights of the observation window, reduced to one risk
// and one mean attention per KV head and past token. Formulas and their sources: docs/methods/defensive.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

// The attention weights of one KV head's window, or of some query heads of it: rows A[g, q, 0..n), `stride`
// floats apart; the first `past` columns are the past, the last `window` of the n columns the window itself.
struct WindowAttention {
    const float* weights = nullptr;
    std::size_t stride = 0;
    int rows = 0;  // query heads · window
    std::uint32_t past = 0;
    std::uint32_t window = 0;

    std::span<const float> row(int r) const { return {weights + std::size_t(r) * stride, past + window}; }
};

// pool(x)[j] of one row's past.
void pool_row(std::span<const float> past, int kernel, float* to);

// For one row, the factor that gives the pooled row the sum it had before pooling.
// pool(x)[j] = average over `kernel` neighbours of the past, zero padded, divisor always `kernel`.
float pooled_rescale(std::span<const float> past, int kernel);

// For columns [begin, end) of the past:
//   risk[j] = the larger of risk[j] and the maximum over rows of rescale[r] · pool(A[r])[j]
//   sum[j] += sum over rows of A[r, j]
// risk and sum point at column 0 of the head.
void reduce_columns(const WindowAttention& attention, std::span<const float> rescale, int kernel,
                    std::uint32_t begin, std::uint32_t end, float* risk, float* sum);

// Mean over rows of the attention that the window's own columns get. `reference` sums the columns
// [past - window, past) instead, as the published code does.
double window_mass(const WindowAttention& attention, bool reference);

}  // namespace holdfast
