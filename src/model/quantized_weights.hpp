#pragma once

#include "base/memory.hpp"
#include "ggml.h"
#include "kernels/quantized.hpp"

namespace holdfast {

// What a matrix of a GGUF file becomes in the layout of quantized_product(), with `groups` null; none if its
// type or shape doesn't fit the layout.
QuantizedMatrix quantized_shape(const ggml_tensor* matrix);

// Lays a matrix that has such a shape out in `groups`: quantized_shape(matrix).bytes() bytes.
void store_quantized(const ggml_tensor* matrix, std::byte* groups);

}  // namespace holdfast
