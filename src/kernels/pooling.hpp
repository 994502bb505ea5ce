// The sliding average of attention weights.
#pragma once

#include <cstddef>

namespace holdfast {

// For k in [0, count), away from the row's ends:
//   most[k] = max(most[k], factor · Σ_{i < kernel} row[k - kernel / 2 + i] / kernel)
//   sum[k] += row[k]
// The same bits on every instruction set.
void raise_to_pooled(const float* row, std::size_t count, int kernel, float factor, float* most, float* sum);

}  // namespace holdfast
