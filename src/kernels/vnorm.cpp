#include "kernels/vnorm.hpp"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vnorm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {

void ProjectedValueNorms(const fp16_t* page, int tokens, int head_dim, const PackedMatrix& output,
                         int first_head, int group, float* norms, float* workspace) {
    const Floats d;
    const std::size_t depth = std::size_t(head_dim);
    const fp16_t* values = page_values(page, head_dim);
    Promote(values, page_tokens * depth, workspace);

    alignas(64) float projected[page_tokens * kPanel];
    alignas(64) float absolute[page_tokens * kPanel];  // per token, the sum over heads and panels, by column
    std::fill(absolute, absolute + tokens * kPanel, 0.0f);
    for (int head = first_head; head < first_head + group; ++head)
        for (int index = 0; index < output.panel_count(); ++index) {
            const float* weights = output.panel(index) + std::size_t(head) * depth * kPanel;
            PanelRows(tokens, depth, workspace, depth, weights, kPanel, projected, kPanel, false);
            for (int i = 0; i < tokens * kPanel; i += kLanes)
                hn::Store(hn::Add(hn::Load(d, absolute + i), hn::Abs(hn::Load(d, projected + i))), d,
                          absolute + i);
        }
    for (int t = 0; t < tokens; ++t) {
        LaneSum total;
        for (int i = 0; i < kPanel; i += kLanes)
            total.Add(i / kLanes % (16 / kLanes), hn::Load(d, absolute + t * kPanel + i));
        norms[t] = total.Total() / float(group);
    }
}

void GramValueNorms(const fp16_t* page, int tokens, int head_dim, std::span<const PackedMatrix> grams,
                    float* norms, float* workspace) {
    const Floats d;
    const std::size_t depth = std::size_t(head_dim);
    const std::size_t stride = depth / kPanel * kPanel + (depth % kPanel == 0 ? 0 : kPanel);
    // Both [32, stride], zero behind head_dim.
    float* value_rows = workspace;
    float* products = workspace + page_tokens * stride;
    const fp16_t* values = page_values(page, head_dim);
    if (stride == depth) {
        Promote(values, page_tokens * depth, value_rows);
    } else {
        std::fill(value_rows, value_rows + std::size_t(tokens) * stride, 0.0f);
        for (int t = 0; t < tokens; ++t)
            for (std::size_t i = 0; i < depth; ++i)
                value_rows[std::size_t(t) * stride + i] = fp16_to_fp32(values[std::size_t(t) * depth + i]);
    }
    std::fill(norms, norms + tokens, 0.0f);
    for (const PackedMatrix& gram : grams) {
        for (int index = 0; index < gram.panel_count(); ++index)
            PanelRows(tokens, depth, value_rows, stride, gram.panel(index), kPanel, products + index * kPanel,
                      stride, false);
        for (int t = 0; t < tokens; ++t) {
            LaneSum total;
            for (std::size_t i = 0; i < stride; i += kLanes)
                total.Add(int(i / kLanes % (16 / kLanes)),
                          hn::Mul(hn::LoadU(d, products + std::size_t(t) * stride + i),
                                  hn::LoadU(d, value_rows + std::size_t(t) * stride + i)));
            norms[t] += std::sqrt(std::max(0.0f, total.Total()));  // rounding may leave a little below 0
        }
    }
    for (int t = 0; t < tokens; ++t) norms[t] /= float(grams.size());
}

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast {

HWY_EXPORT(ProjectedValueNorms);
HWY_EXPORT(GramValueNorms);

void projected_value_norms(const fp16_t* page, int tokens, int head_dim, const PackedMatrix& output,
                           int first_head, int group, float* norms, float* workspace) {
    HWY_DYNAMIC_DISPATCH(ProjectedValueNorms)
    (page, tokens, head_dim, output, first_head, group, norms, workspace);
}
void gram_value_norms(const fp16_t* page, int tokens, int head_dim, std::span<const PackedMatrix> grams,
                      float* norms, float* workspace) {
    HWY_DYNAMIC_DISPATCH(GramValueNorms)(page, tokens, head_dim, grams, norms, workspace);
}

void pack_gram(const PackedMatrix& output, int head, int head_dim, float* panels) {
    const std::size_t width = std::size_t(output.outputs), depth = std::size_t(head_dim);
    std::vector<float> rows(depth * width);  // W_h
    for (std::size_t i = 0; i < depth; ++i)
        for (int index = 0; index < output.panel_count(); ++index) {
            const float* from = output.panel(index) + (std::size_t(head) * depth + i) * 32;
            std::copy_n(from, std::min<std::size_t>(32, width - std::size_t(index) * 32),
                        rows.data() + i * width + std::size_t(index) * 32);
        }
    std::vector<float> packed(PackedMatrix::elements(head_dim, output.outputs)),
        scratch(32 * std::max(width, depth));
    const PackedMatrix right{packed.data(), head_dim, output.outputs};
    for (int i = 0; i < right.panel_count(); ++i)
        pack_panel(
            packed.data(), i, head_dim, output.outputs,
            [&](int row, float* to) { std::copy_n(rows.data() + std::size_t(row) * width, width, to); },
            scratch.data());
    std::vector<float> gram(depth * depth);
    matmul(head_dim, rows.data(), width, right, 0, right.panel_count(), nullptr, gram.data(), depth);
    for (int i = 0; i < right.panel_count(); ++i)
        pack_panel(
            panels, i, head_dim, head_dim,
            [&](int row, float* to) { std::copy_n(gram.data() + std::size_t(row) * depth, depth, to); },
            scratch.data());
}

}  // namespace holdfast
#endif
