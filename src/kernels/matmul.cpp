#include "kernels/matmul.hpp"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cpp"
#include "hwy/foreach_target.h"
#include "kernels/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {

// A block of rows stays in the second-level cache while the panels pass by; a long depth is cut, so that
// one slice of a panel and of a row tile fit the caches too.
constexpr int kBlockRows = 96;
constexpr int kBlockDepth = 512;

void Matmul(int rows, const float* a, std::size_t a_stride, const PackedMatrix& weights, int panel_begin,
            int panel_end, const float* bias, float* c, std::size_t c_stride) {
    alignas(64) float tail[kBlockRows * kPanel];  // the last panel may hang over the end of C's rows
    for (int row = 0; row < rows; row += kBlockRows) {
        const int block = std::min(kBlockRows, rows - row);
        for (int index = panel_begin; index < panel_end; ++index) {
            const int columns = std::min(kPanel, weights.outputs - index * kPanel);
            float* target = c + row * c_stride + index * kPanel;
            float* out = columns == kPanel ? target : tail;
            const std::size_t stride = columns == kPanel ? c_stride : std::size_t(kPanel);
            for (int depth = 0; depth < weights.inputs; depth += kBlockDepth) {
                const int slice = std::min(kBlockDepth, weights.inputs - depth);
                PanelRows(block, std::size_t(slice), a + row * a_stride + depth, a_stride,
                          weights.panel(index) + std::size_t(depth) * kPanel, kPanel, out, stride, depth > 0);
            }
            if (out == target && bias == nullptr) continue;
            for (int r = 0; r < block; ++r)
                for (int j = 0; j < columns; ++j)
                    target[r * c_stride + j] =
                        out[r * stride + j] + (bias == nullptr ? 0.0f : bias[index * kPanel + j]);
        }
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast {

HWY_EXPORT(Matmul);

void matmul(int rows, const float* a, std::size_t a_stride, const PackedMatrix& weights, int panel_begin,
            int panel_end, const float* bias, float* c, std::size_t c_stride) {
    HWY_DYNAMIC_DISPATCH(Matmul)(rows, a, a_stride, weights, panel_begin, panel_end, bias, c, c_stride);
}

void pack_panel(float* panels, int index, int outputs, int inputs,
                const std::function<void(int, float*)>& row, float* scratch) {
    const int begin = index * 32, count = std::min(32, outputs - begin);
    for (int i = 0; i < count; ++i) row(begin + i, scratch + std::size_t(i) * std::size_t(inputs));
    std::fill(scratch + std::size_t(count) * std::size_t(inputs),
              scratch + std::size_t(32) * std::size_t(inputs), 0.0f);
    float* panel = panels + std::size_t(index) * std::size_t(inputs) * 32;
    constexpr int tile = 16;  // one cache line of each of the 32 rows
    for (int k0 = 0; k0 < inputs; k0 += tile)
        for (int i = 0; i < 32; ++i) {
            const float* from = scratch + std::size_t(i) * std::size_t(inputs);
            for (int k = k0; k < std::min(k0 + tile, inputs); ++k)
                panel[std::size_t(k) * 32 + std::size_t(i)] = from[k];
        }
}

}  // namespace holdfast
#endif
