#include "kernels/vnorm.hpp"

#include <algorithm>

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
    for (std::size_t i = 0; i < std::size_t(tokens) * depth; ++i) workspace[i] = fp16_to_fp32(values[i]);

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

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast {

HWY_EXPORT(ProjectedValueNorms);

void projected_value_norms(const fp16_t* page, int tokens, int head_dim, const PackedMatrix& output,
                           int first_head, int group, float* norms, float* workspace) {
    HWY_DYNAMIC_DISPATCH(ProjectedValueNorms)
    (page, tokens, head_dim, output, first_head, group, norms, workspace);
}

}  // namespace holdfast
#endif
