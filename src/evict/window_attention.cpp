#include "evict/window_attention.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "kernels/pooling.hpp"

namespace holdfast {

namespace {

// Σ of row[j - kernel/2 .. j + kernel/2] inside the past, divided by kernel.
inline float pooled(const float* row, std::int64_t j, std::int64_t past, int kernel) {
    const std::int64_t begin = std::max<std::int64_t>(0, j - kernel / 2);
    const std::int64_t end = std::min<std::int64_t>(past, j - kernel / 2 + kernel);
    float sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += row[i];
    return sum / float(kernel);
}

}  // namespace

void pool_row(std::span<const float> past, int kernel, float* to) {
    for (std::size_t j = 0; j < past.size(); ++j)
        to[j] = pooled(past.data(), std::int64_t(j), std::int64_t(past.size()), kernel);
}

float pooled_rescale(std::span<const float> past, int kernel) {
    // Σ_j pool(x)[j] without pooling: x[i] is counted once for each window that covers it.
    const std::int64_t n = std::int64_t(past.size());
    double before = 0, after = 0;
    const auto at_edge = [&](std::int64_t i) {
        before += double(past[std::size_t(i)]);
        const std::int64_t first = std::max<std::int64_t>(0, i + kernel / 2 - kernel + 1);
        const std::int64_t last = std::min<std::int64_t>(n - 1, i + kernel / 2);
        after += double(past[std::size_t(i)]) * double(last - first + 1) / kernel;
    };
    const std::int64_t inner_begin = std::min<std::int64_t>(n, kernel),
                       inner_end = std::max(inner_begin, n - kernel);
    for (std::int64_t i = 0; i < inner_begin; ++i) at_edge(i);
    for (std::int64_t i = inner_end; i < n; ++i) at_edge(i);
    double inner[8] = {};  // sums of every eighth: the additions needn't wait for one another
    std::int64_t i = inner_begin;
    for (; i + 8 <= inner_end; i += 8)
        for (std::int64_t k = 0; k < 8; ++k) inner[k] += double(past[std::size_t(i + k)]);
    for (; i < inner_end; ++i) inner[0] += double(past[std::size_t(i)]);
    const double sum = std::accumulate(std::begin(inner), std::end(inner), 0.0);
    before += sum;
    after += sum;
    return after > 0 ? float(before / after) : 1.0f;
}

void reduce_columns(const WindowAttention& attention, std::span<const float> rescale, int kernel,
                    std::uint32_t begin, std::uint32_t end, float* risk, float* sum) {
    const std::uint32_t inner_begin = std::min(end, std::max(begin, std::uint32_t(kernel)));
    const std::uint32_t inner_end = std::max(
        inner_begin, std::min(end, attention.past - std::min(attention.past, std::uint32_t(kernel))));
    for (int r = 0; r < attention.rows; ++r) {
        const float* row = attention.row(r).data();
        const float factor = rescale[std::size_t(r)];
        const auto at_edge = [&](std::uint32_t first, std::uint32_t last) {
            for (std::uint32_t j = first; j < last; ++j) {
                sum[j] += row[j];
                risk[j] = std::max(risk[j], pooled(row, j, attention.past, kernel) * factor);
            }
        };
        at_edge(begin, inner_begin);
        raise_to_pooled(row + inner_begin, inner_end - inner_begin, kernel, factor, risk + inner_begin,
                        sum + inner_begin);
        at_edge(inner_end, end);
    }
}

double window_mass(const WindowAttention& attention, bool reference) {
    const std::uint32_t shift = reference ? attention.window : 0;
    double mass = 0;
    for (int r = 0; r < attention.rows; ++r) {
        const std::span<const float> row = attention.row(r);
        const std::size_t end = row.size() - shift;
        for (std::size_t j = end - std::min<std::size_t>(end, attention.window); j < end; ++j) mass += row[j];
    }
    return mass / attention.rows;
}

}  // namespace holdfast
