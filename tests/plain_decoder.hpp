// The decoder once more, in double precision and without any cache: for models of F32 matrices, of every
// architecture.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "holdfast/method.hpp"
#include "model/model.hpp"

namespace holdfast::testing {

// Whether a query at one position may attend to a key at an earlier one.
using Mask = std::function<bool(int layer, int kv_head, int query_position, int key_position)>;

// Logits after the last token, where `mask` restricts attention beyond causality and sliding windows.
// rotations: of each layer (measure_rotation).
std::vector<float> plain_logits(const GgufModel& model, std::span<const Rotation> rotations,
                                std::span<const int> tokens, const Mask& mask);

}  // namespace holdfast::testing
