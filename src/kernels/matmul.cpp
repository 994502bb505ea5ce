#include "kernels/matmul.hpp"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cpp"
#include "hwy/foreach_target.h"
#include "kernels/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {

// One slice of the depth of a block of rows stays in the second-level cache while that of the panels passes
// by: a copy of it, since rows that are a multiple of 4 KiB apart would fall into the same few lines of the
// first.
constexpr int kBlockRows = 96;
constexpr int kBlockDepth = 640;
constexpr int kSliceStride = kBlockDepth + 16;

void Matmul(int rows, const float* a, std::size_t a_stride, const PackedMatrix& weights, int panel_begin,
            int panel_end, const float* bias, float* c, std::size_t c_stride) {
    alignas(64) float block_slice[kBlockRows * kSliceStride];
    alignas(64) float tail[kBlockRows * kPanel];  // the last panel may hang over the end of C's rows
    const int slices = (weights.inputs + kBlockDepth - 1) / kBlockDepth;
    const int most = (weights.inputs + slices - 1) / slices;  // of nearly equal slices
    for (int row = 0; row < rows; row += kBlockRows) {
        const int block = std::min(kBlockRows, rows - row);
        const auto columns = [&](int index) { return std::min(kPanel, weights.outputs - index * kPanel); };
        for (int depth = 0, slice; depth < weights.inputs; depth += slice) {
            slice = std::min(most, weights.inputs - depth);
            for (int r = 0; r < block; ++r)
                std::copy_n(a + (row + r) * a_stride + depth, slice, block_slice + r * kSliceStride);
            for (int index = panel_begin; index < panel_end; ++index) {
                const bool whole = columns(index) == kPanel;
                PanelRows(block, std::size_t(slice), block_slice, kSliceStride,
                          weights.panel(index) + std::size_t(depth) * kPanel, kPanel,
                          whole ? c + row * c_stride + index * kPanel : tail,
                          whole ? c_stride : std::size_t(kPanel), depth > 0);
            }
        }
        for (int index = panel_begin; index < panel_end; ++index) {
            const bool whole = columns(index) == kPanel;
            if (whole && bias == nullptr) continue;
            float* target = c + row * c_stride + index * kPanel;
            const float* from = whole ? target : tail;
            const std::size_t stride = whole ? c_stride : std::size_t(kPanel);
            for (int r = 0; r < block; ++r)
                for (int j = 0; j < columns(index); ++j)
                    target[r * c_stride + j] =
                        from[r * stride + j] + (bias == nullptr ? 0.0f : bias[index * kPanel + j]);
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
