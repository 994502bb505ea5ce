#include "evict/window_attention.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

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
    for (std::int64_t i = inner_begin; i < inner_end; ++i)
        inner[(i - inner_begin) % 8] += double(past[std::size_t(i)]);
    const double sum = std::accumulate(std::begin(inner), std::end(inner), 0.0);
    before += sum;
    after += sum;
    return after > 0 ? float(before / after) : 1.0f;
}

void reduce_columns(const WindowAttention& attention, std::span<const float> rescale, int kernel,
                    std::uint32_t begin, std::uint32_t end, float* risk, float* mean) {
    constexpr std::uint32_t strip = 128;
    std::fill(risk + begin, risk + end, 0.0f);
    std::fill(mean + begin, mean + end, 0.0f);
    const std::uint32_t inner_begin = std::max(begin, std::uint32_t(kernel));
    const std::uint32_t inner_end = std::max(
        inner_begin, std::min(end, attention.past - std::min(attention.past, std::uint32_t(kernel))));
    for (int r = 0; r < attention.rows; ++r) {
        const float* row = attention.row(r).data();
        const float factor = rescale[std::size_t(r)];
        for (std::uint32_t j = begin; j < end; ++j) mean[j] += row[j];
        for (std::uint32_t j = begin; j < std::min(end, inner_begin); ++j)
            risk[j] = std::max(risk[j], pooled(row, j, attention.past, kernel) * factor);
        for (std::uint32_t j = inner_begin; j < inner_end; j += strip) {  // no edge in sight
            const std::uint32_t count = std::min(strip, inner_end - j);
            float sums[strip] = {};
            for (int i = 0; i < kernel; ++i) {
                const float* shifted = row + j - std::uint32_t(kernel / 2) + std::uint32_t(i);
                for (std::uint32_t k = 0; k < count; ++k) sums[k] += shifted[k];
            }
            for (std::uint32_t k = 0; k < count; ++k)
                risk[j + k] = std::max(risk[j + k], sums[k] / float(kernel) * factor);
        }
        for (std::uint32_t j = std::max(begin, inner_end); j < end; ++j)
            risk[j] = std::max(risk[j], pooled(row, j, attention.past, kernel) * factor);
    }
    for (std::uint32_t j = begin; j < end; ++j) mean[j] /= float(attention.rows);
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
