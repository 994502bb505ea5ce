#include "model/quantized_weights.hpp"

#include <cstring>

namespace holdfast {

namespace {

// Blocks as GGUF files have them.
struct Q4_0 {
    fp16_t scale;
    std::uint8_t codes[16];  // input i below, 16 + i above
};
struct Q4_1 {
    fp16_t scale, offset;
    std::uint8_t codes[16];
};
struct Q8_0 {
    fp16_t scale;
    std::int8_t codes[32];
};
struct Q4_K {  // 256 inputs: 8 blocks
    fp16_t scale, offset;
    std::uint8_t scales[12];    // of the blocks: 8 scales and 8 offsets of 6 bits
    std::uint8_t codes[4][32];  // of two blocks each: one below, one above
};
static_assert(sizeof(Q4_0) == 18 && sizeof(Q4_1) == 20 && sizeof(Q8_0) == 34 && sizeof(Q4_K) == 144);

QuantizedBlock block_of(const Q4_0* row, int b) {
    QuantizedBlock block;
    std::memcpy(block.codes, row[b].codes, 16);
    block.scale = row[b].scale;
    block.offset = fp32_to_fp16(-8 * fp16_to_fp32(row[b].scale));
    return block;
}

QuantizedBlock block_of(const Q4_1* row, int b) {
    QuantizedBlock block;
    std::memcpy(block.codes, row[b].codes, 16);
    block.scale = row[b].scale;
    block.offset = row[b].offset;
    return block;
}

QuantizedBlock block_of(const Q8_0* row, int b) {
    QuantizedBlock block;
    for (int i = 0; i < 32; ++i) block.codes[i] = std::uint8_t(row[b].codes[i] ^ 0x80);  // + 128
    block.scale = row[b].scale;
    block.offset = fp32_to_fp16(-128 * fp16_to_fp32(row[b].scale));
    return block;
}

QuantizedBlock block_of(const Q4_K* row, int b) {
    const Q4_K& whole = row[b / 8];
    const int j = b % 8;
    const std::uint8_t* s = whole.scales;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
    const int offset = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6 << 4);
    const std::uint8_t* codes = whole.codes[j / 2];
    const int shift = j % 2 * 4;
    QuantizedBlock block;
    for (int i = 0; i < 16; ++i)
        block.codes[i] = std::uint8_t((codes[i] >> shift & 15) | (codes[16 + i] >> shift & 15) << 4);
    block.scale = fp32_to_fp16(fp16_to_fp32(whole.scale) * float(scale));
    block.offset = fp32_to_fp16(-fp16_to_fp32(whole.offset) * float(offset));
    return block;
}

template <class Block>
void store(const ggml_tensor* matrix, const QuantizedMatrix& shape, std::byte* groups) {
    const int blocks = shape.inputs / quantized_inputs;
    for (int output = 0; output < shape.outputs; ++output) {
        const auto* row = reinterpret_cast<const Block*>(static_cast<const std::byte*>(matrix->data) +
                                                         std::size_t(output) * matrix->nb[1]);
        std::byte* group = groups + std::size_t(output / quantized_outputs) * shape.group_bytes();
        for (int b = 0; b < blocks; ++b)
            store_block(group + std::size_t(b) * shape.block_bytes(), shape.bits, output % quantized_outputs,
                        block_of(row, b));
    }
}

}  // namespace

QuantizedMatrix quantized_shape(const ggml_tensor* matrix) {
    QuantizedMatrix shape;
    switch (matrix->type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q4_K:
            shape.bits = 4;
            break;
        case GGML_TYPE_Q8_0:
            shape.bits = 8;
            break;
        default:
            return {};
    }
    shape.inputs = int(matrix->ne[0]);
    shape.outputs = int(matrix->ne[1]);
    return shape;
}

void store_quantized(const ggml_tensor* matrix, std::byte* groups) {
    const QuantizedMatrix shape = quantized_shape(matrix);
    switch (matrix->type) {
        case GGML_TYPE_Q4_0:
            return store<Q4_0>(matrix, shape, groups);
        case GGML_TYPE_Q4_1:
            return store<Q4_1>(matrix, shape, groups);
        case GGML_TYPE_Q4_K:
            return store<Q4_K>(matrix, shape, groups);
        default:
            return store<Q8_0>(matrix, shape, groups);
    }
}

}  // namespace holdfast
