// Products with weights that stay quantised: y = W x + b, x rounded to 8 bits.
//
// Every 32 inputs of an output share a scale and an offset:
//   weight = scale · code + offset,  code in 0..15 or 0..255
// which covers Q4_0, Q4_1 and Q8_0 exactly, and Q4_K but for rounding its scales to fp16.
//
// Layout: 16 outputs side by side, block by block of 32 inputs, so that a vector holds the same inputs of
// different outputs and nothing is summed across lanes:
//   4 bits: 4 lines of [16 outputs][4 bytes], a byte of line j: input 4j + i below, 16 + 4j + i above
//   8 bits: 8 lines of [16 outputs][4 bytes], a byte of line j: input 4j + i
//   scales [16] fp16, offsets [16] fp16
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.hpp"

namespace holdfast {

constexpr int quantized_inputs = 32;   // of a block
constexpr int quantized_outputs = 16;  // of a group

struct QuantizedMatrix {
    const std::byte* groups = nullptr;  // null: there is none
    int outputs = 0;
    int inputs = 0;  // a multiple of 32
    int bits = 0;    // 4 or 8

    explicit operator bool() const { return groups != nullptr; }
    int group_count() const { return (outputs + quantized_outputs - 1) / quantized_outputs; }
    std::size_t block_bytes() const {
        return std::size_t(quantized_outputs) * std::size_t(quantized_inputs * bits / 8 + 4);
    }
    std::size_t group_bytes() const { return std::size_t(inputs / quantized_inputs) * block_bytes(); }
    std::size_t bytes() const { return std::size_t(group_count()) * group_bytes(); }
};

// One block of one output: 16 or 32 bytes of codes, of 4-bit ones in byte i the inputs i and 16 + i.
struct QuantizedBlock {
    std::uint8_t codes[32];
    fp16_t scale, offset;
};
// Writes it for output `lane` (0..15) of a block of a group.
void store_block(std::byte* block, int bits, int lane, const QuantizedBlock& weights);

// Rows rounded to 8 or 15 bits: every 32 inputs share a scale,
//   x = scale · code,  code in -127..127;  or  x = scale · (128 code + low),  low in -64..64
struct QuantizedRows {
    std::int8_t* codes = nullptr;  // [rows, stride()]
    std::int8_t* low = nullptr;    // [rows, stride()], or null: 8 bits
    float* scales = nullptr;       // [rows, inputs / 32]
    float* sums = nullptr;         // [rows, inputs / 32]: scale · Σ codes (128 code + low of 15 bits)
    int inputs = 0;

    // Rows that are a multiple of 4 KiB apart would fall into the same few lines of the first cache.
    static constexpr std::size_t stride(int inputs) { return std::size_t(inputs) + 64; }
    std::size_t stride() const { return stride(inputs); }
    QuantizedRows from(int row) const {
        const std::size_t first = std::size_t(row), block = first * std::size_t(inputs / quantized_inputs);
        return {codes + first * stride(), low == nullptr ? nullptr : low + first * stride(), scales + block,
                sums + block, inputs};
    }
    // bits: 8 or 15. bytes: of the memory for at(), a multiple of 64.
    static constexpr std::size_t bytes(int rows, int inputs, int bits) {
        const std::size_t row = stride(inputs) * (bits > 8 ? 2 : 1) + std::size_t(inputs / 32) * 8;
        return (std::size_t(rows) * row + 63) / 64 * 64;
    }
    static QuantizedRows at(std::byte* memory, int rows, int inputs, int bits);
};
void quantize_rows(int rows, const float* x, std::size_t stride, const QuantizedRows& to);

// Whether products of many rows are faster than with the weights expanded to fp32, on the instruction set in
// use.
bool beats_fp32(const QuantizedMatrix& weights);

// y[r · stride + o] = Σ_i W[o, i] x[r, i] + bias[o] for the outputs o of groups [begin, end). bias may be
// null. The same bits on every instruction set, however rows and groups are divided among calls.
void quantized_product(const QuantizedMatrix& weights, int begin, int end, int rows, const QuantizedRows& x,
                       const float* bias, float* y, std::size_t stride);

}  // namespace holdfast
