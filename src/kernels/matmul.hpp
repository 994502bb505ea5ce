// Products with weights that were expanded to fp32 once: C = A · Wᵀ.
#pragma once

#include <cstddef>
#include <functional>

namespace holdfast {

// A weight matrix W [outputs, inputs] as panels of 32 outputs: [outputs / 32 rounded up][inputs][32],
// the missing outputs of the last panel zero.
struct PackedMatrix {
    const float* panels = nullptr;
    int outputs = 0;
    int inputs = 0;

    static constexpr std::size_t elements(int outputs, int inputs) {
        return std::size_t(outputs + 31) / 32 * 32 * std::size_t(inputs);
    }
    int panel_count() const { return (outputs + 31) / 32; }
    const float* panel(int index) const { return panels + std::size_t(index) * std::size_t(inputs) * 32; }
};

// Writes panel `index`; row(i, to) must write row i of W, `inputs` floats.
// scratch: [32, inputs].
void pack_panel(float* panels, int index, int outputs, int inputs,
                const std::function<void(int, float*)>& row, float* scratch);

// C[0..rows, panels [panel_begin, panel_end)] = A · Wᵀ + bias. A [rows, inputs] with a_stride floats from
// row to row, C [rows, outputs] with c_stride; bias [outputs] or null.
void matmul(int rows, const float* a, std::size_t a_stride, const PackedMatrix& weights, int panel_begin,
            int panel_end, const float* bias, float* c, std::size_t c_stride);

}  // namespace holdfast
