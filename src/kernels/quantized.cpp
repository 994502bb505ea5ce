#include "kernels/quantized.hpp"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized.cpp"
#include "hwy/foreach_target.h"
#include "kernels/panel-inl.hpp"

#if HWY_TARGET == HWY_AVX3_DL
// Every processor of this target has it; Highway 1.0.3 forgets it.
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace holdfast {
namespace HWY_NAMESPACE {

constexpr int kGroupVectors = quantized_outputs / kLanes;
constexpr int kGroupRows = kLanes == 16 ? 12 : 4;  // as many as the registers hold
using Whole = hn::RebindToSigned<Floats>;
using WholeVector = hn::Vec<Whole>;

// The whole-number part: sums [rows][vectors] over one block of Σ code · x.
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

using Bytes = hn::Repartition<std::uint8_t, Floats>;
using ByteVector = hn::Vec<Bytes>;

// Four inputs of a row, for all outputs.
HWY_INLINE ByteVector FourInputs(const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    return hn::BitCast(Bytes(), hn::Set(Whole(), four));
}
HWY_INLINE ByteVector LowNibbles(ByteVector codes) {
    return hn::And(codes, hn::Set(Bytes(), 15));
}
HWY_INLINE ByteVector HighNibbles(ByteVector codes) {
    const hn::Repartition<std::uint16_t, Floats> pairs;
    return LowNibbles(hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(pairs, codes))));
}

#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE void AddProducts(WholeVector& sum, ByteVector codes, ByteVector x) {
    sum.raw = _mm512_dpbusd_epi32(sum.raw, codes.raw, x.raw);
}

template <int Rows>
HWY_INLINE void WideBlock(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                          WholeVector (&sums)[Rows][kGroupVectors]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
        const ByteVector line = hn::LoadU(Bytes(), codes + j * 64);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) AddProducts(sums[r][0], line, FourInputs(x + r * stride + 4 * j));
    }
}

template <int Rows>
HWY_INLINE void NarrowBlock(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                            WholeVector (&sums)[Rows][kGroupVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const ByteVector line = hn::LoadU(Bytes(), codes + j * 64);
        const ByteVector low = LowNibbles(line), high = HighNibbles(line);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            AddProducts(sums[r][0], low, FourInputs(x + r * stride + 4 * j));
            AddProducts(sums[r][0], high, FourInputs(x + r * stride + 16 + 4 * j));
        }
    }
}

#else

// Pairs of products in 16 bits: at most 8 · 2 · 15 · 127 = 30480 for nibbles.
using Pairs = hn::Repartition<std::int16_t, Floats>;
using PairVector = hn::Vec<Pairs>;

HWY_INLINE void AddPairs(PairVector& sum, ByteVector codes, ByteVector x) {
#if HWY_TARGET == HWY_AVX3
    sum.raw = _mm512_add_epi16(sum.raw, _mm512_maddubs_epi16(codes.raw, x.raw));
#else
    sum.raw = _mm256_add_epi16(sum.raw, _mm256_maddubs_epi16(codes.raw, x.raw));
#endif
}
HWY_INLINE WholeVector AddNeighbours(PairVector pairs) {
    WholeVector sum;
#if HWY_TARGET == HWY_AVX3
    sum.raw = _mm512_madd_epi16(pairs.raw, _mm512_set1_epi16(1));
#else
    sum.raw = _mm256_madd_epi16(pairs.raw, _mm256_set1_epi16(1));
#endif
    return sum;
}

template <int Rows>
HWY_INLINE void WideBlock(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                          WholeVector (&sums)[Rows][kGroupVectors]) {
    for (int v = 0; v < kGroupVectors; ++v) {
        PairVector low[Rows], high[Rows];
        for (int r = 0; r < Rows; ++r) low[r] = high[r] = hn::Zero(Pairs());
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            const ByteVector line = hn::LoadU(Bytes(), codes + j * 64 + v * 4 * kLanes);
            const ByteVector line_low = LowNibbles(line), line_high = HighNibbles(line);
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
                const ByteVector four = FourInputs(x + r * stride + 4 * j);
                AddPairs(low[r], line_low, four);
                AddPairs(high[r], line_high, four);
            }
        }
        for (int r = 0; r < Rows; ++r)
            sums[r][v] = hn::Add(AddNeighbours(low[r]), hn::ShiftLeft<4>(AddNeighbours(high[r])));
    }
}

template <int Rows>
HWY_INLINE void NarrowBlock(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                            WholeVector (&sums)[Rows][kGroupVectors]) {
    for (int v = 0; v < kGroupVectors; ++v) {
        PairVector pairs[Rows];
        for (int r = 0; r < Rows; ++r) pairs[r] = hn::Zero(Pairs());
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const ByteVector line = hn::LoadU(Bytes(), codes + j * 64 + v * 4 * kLanes);
            const ByteVector low = LowNibbles(line), high = HighNibbles(line);
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
                AddPairs(pairs[r], low, FourInputs(x + r * stride + 4 * j));
                AddPairs(pairs[r], high, FourInputs(x + r * stride + 16 + 4 * j));
            }
        }
        for (int r = 0; r < Rows; ++r) sums[r][v] = AddNeighbours(pairs[r]);
    }
}

#endif

#else  // portable

template <int Rows, class CodeOf>
HWY_INLINE void PlainBlock(const std::int8_t* x, std::size_t stride, WholeVector (&sums)[Rows][kGroupVectors],
                           const CodeOf& code_of) {
    for (int r = 0; r < Rows; ++r) {
        alignas(64) std::int32_t sum[quantized_outputs] = {};
        for (int i = 0; i < quantized_inputs; ++i)
            for (int lane = 0; lane < quantized_outputs; ++lane)
                sum[lane] += std::int32_t(code_of(lane, i)) * x[r * stride + i];
        for (int v = 0; v < kGroupVectors; ++v) sums[r][v] = hn::Load(Whole(), sum + v * kLanes);
    }
}

template <int Rows>
HWY_INLINE void WideBlock(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                          WholeVector (&sums)[Rows][kGroupVectors]) {
    PlainBlock<Rows>(x, stride, sums, [=](int lane, int i) { return codes[i / 4 * 64 + lane * 4 + i % 4]; });
}

template <int Rows>
HWY_INLINE void NarrowBlock(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                            WholeVector (&sums)[Rows][kGroupVectors]) {
    PlainBlock<Rows>(x, stride, sums, [=](int lane, int i) {
        const std::uint8_t byte = codes[i % 16 / 4 * 64 + lane * 4 + i % 4];
        return i < 16 ? byte & 15 : byte >> 4;
    });
}

#endif

// One group of outputs for Rows rows.
template <int Rows, int Bits>
HWY_INLINE void Block(const std::uint8_t* weights, const std::int8_t* x, std::size_t stride,
                      WholeVector (&sums)[Rows][kGroupVectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kGroupVectors; ++v) sums[r][v] = hn::Zero(Whole());
    if constexpr (Bits == 4)
        NarrowBlock<Rows>(weights, x, stride, sums);
    else
        WideBlock<Rows>(weights, x, stride, sums);
}

template <int Rows, int Bits, bool Low>
HWY_NOINLINE void Group(const std::byte* blocks, int block_count, const QuantizedRows& x, int row,
                        float (*result)[quantized_outputs]) {
    constexpr std::size_t code_bytes = std::size_t(quantized_outputs) * quantized_inputs * Bits / 8;
    constexpr std::size_t block_bytes = code_bytes + 4 * quantized_outputs;
    const Floats d;
    const std::size_t stride = x.stride();
    const std::int8_t* codes = x.codes + std::size_t(row) * stride;
    const std::int8_t* low_codes = Low ? x.low + std::size_t(row) * stride : nullptr;
    const float* scales = x.scales + std::size_t(row) * std::size_t(block_count);
    const float* sums = x.sums + std::size_t(row) * std::size_t(block_count);
    Vector total[Rows][kGroupVectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kGroupVectors; ++v) total[r][v] = hn::Zero(d);
    for (int b = 0; b < block_count; ++b) {
        const std::byte* block = blocks + std::size_t(b) * block_bytes;
        const auto* weights = reinterpret_cast<const std::uint8_t*>(block);
        if constexpr (Rows <= 4) {  // more aren't bound by memory
            constexpr int ahead = 4096;
            for (std::size_t line = 0; line < block_bytes; line += 64) PrefetchLine(block + ahead + line);
        }
        WholeVector whole[Rows][kGroupVectors];
        Block<Rows, Bits>(weights, codes + std::size_t(b) * quantized_inputs, stride, whole);
        if constexpr (Low) {
            WholeVector low[Rows][kGroupVectors];
            Block<Rows, Bits>(weights, low_codes + std::size_t(b) * quantized_inputs, stride, low);
            for (int r = 0; r < Rows; ++r)
                for (int v = 0; v < kGroupVectors; ++v)
                    whole[r][v] = hn::Add(hn::ShiftLeft<7>(whole[r][v]), low[r][v]);
        }
        const auto* factors = reinterpret_cast<const std::uint16_t*>(block + code_bytes);
        for (int v = 0; v < kGroupVectors; ++v) {
            const Vector scale = LoadFloats(factors + v * kLanes);
            const Vector offset = LoadFloats(factors + quantized_outputs + v * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
                const std::size_t at = std::size_t(r) * std::size_t(block_count) + std::size_t(b);
                const Vector product = hn::Mul(hn::ConvertTo(d, whole[r][v]), hn::Set(d, scales[at]));
                total[r][v] = FusedMulAdd(hn::Set(d, sums[at]), offset, total[r][v]);
                total[r][v] = FusedMulAdd(product, scale, total[r][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kGroupVectors; ++v) hn::StoreU(total[r][v], d, result[r] + v * kLanes);
}

template <int Bits, bool Low, int Rows>
HWY_INLINE void OneGroup(int rows, const std::byte* blocks, int block_count, const QuantizedRows& x, int row,
                         float (*result)[quantized_outputs]) {
    if constexpr (Rows > 0) {
        if (rows == Rows)
            Group<Rows, Bits, Low>(blocks, block_count, x, row, result);
        else
            OneGroup<Bits, Low, Rows - 1>(rows, blocks, block_count, x, row, result);
    }
}

template <int Bits, bool Low>
void Product(const QuantizedMatrix& weights, int begin, int end, int rows, const QuantizedRows& x,
             const float* bias, float* y, std::size_t stride) {
    const int blocks = weights.inputs / quantized_inputs;
    constexpr int most = Low ? 4 : kGroupRows;
    const int tiles = (rows + most - 1) / most;  // of equal height as far as possible
    alignas(64) float result[most][quantized_outputs];
    for (int group = begin; group < end; ++group) {
        const std::byte* from = weights.groups + std::size_t(group) * weights.group_bytes();
        const int first = group * quantized_outputs;
        const int columns = std::min(quantized_outputs, weights.outputs - first);
        for (int tile = 0; tile < tiles; ++tile) {
            const int row = rows * tile / tiles, count = rows * (tile + 1) / tiles - row;
            OneGroup<Bits, Low, most>(count, from, blocks, x, row, result);
            for (int r = 0; r < count; ++r)
                for (int i = 0; i < columns; ++i)
                    y[std::size_t(row + r) * stride + std::size_t(first + i)] =
                        bias == nullptr ? result[r][i] : result[r][i] + bias[first + i];
        }
    }
}

void QuantizedProduct(const QuantizedMatrix& weights, int begin, int end, int rows, const QuantizedRows& x,
                      const float* bias, float* y, std::size_t stride) {
    const auto product = weights.bits == 4 ? (x.low == nullptr ? Product<4, false> : Product<4, true>)
                                           : (x.low == nullptr ? Product<8, false> : Product<8, true>);
    product(weights, begin, end, rows, x, bias, y, stride);
}

// Codes of 8 bits fill pairs of products, so that without dot products of bytes they take twice as many
// steps as fp32.
bool BeatsFp32(const QuantizedMatrix& weights) {
    return HWY_TARGET == HWY_AVX3_DL || weights.bits == 4;
}

void QuantizeRows(int rows, const float* x, std::size_t stride, const QuantizedRows& to) {
    const Floats d;
    const Whole whole;
    const hn::Rebind<std::int8_t, Floats> bytes;
    const int blocks = to.inputs / quantized_inputs;
    const float most_code = to.low == nullptr ? 127.0f : 127.0f * 128.0f;
    for (int r = 0; r < rows; ++r)
        for (int b = 0; b < blocks; ++b) {
            const float* from = x + std::size_t(r) * stride + std::size_t(b) * quantized_inputs;
            const std::size_t first = std::size_t(r) * to.stride() + std::size_t(b) * quantized_inputs;
            Vector most = hn::Zero(d);
            for (int i = 0; i < quantized_inputs; i += kLanes)
                most = hn::Max(most, hn::Abs(hn::LoadU(d, from + i)));
            const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
            const float scale = largest / most_code, inverse = largest > 0 ? most_code / largest : 0.0f;
            WholeVector total = hn::Zero(whole);
            for (int i = 0; i < quantized_inputs; i += kLanes) {
                const WholeVector code = hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, inverse)));
                total = hn::Add(total, code);
                WholeVector high = code;
                if (to.low != nullptr) {
                    high = hn::ShiftRight<7>(hn::Add(code, hn::Set(whole, 64)));
                    hn::StoreU(hn::DemoteTo(bytes, hn::Sub(code, hn::ShiftLeft<7>(high))), bytes,
                               to.low + first + i);
                }
                hn::StoreU(hn::DemoteTo(bytes, high), bytes, to.codes + first + i);
            }
            const std::size_t at = std::size_t(r) * std::size_t(blocks) + std::size_t(b);
            to.scales[at] = scale;
            to.sums[at] = scale * float(hn::GetLane(hn::SumOfLanes(whole, total)));
        }
}

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast {

HWY_EXPORT(QuantizedProduct);
HWY_EXPORT(QuantizeRows);
HWY_EXPORT(BeatsFp32);

void quantized_product(const QuantizedMatrix& weights, int begin, int end, int rows, const QuantizedRows& x,
                       const float* bias, float* y, std::size_t stride) {
    HWY_DYNAMIC_DISPATCH(QuantizedProduct)(weights, begin, end, rows, x, bias, y, stride);
}
void quantize_rows(int rows, const float* x, std::size_t stride, const QuantizedRows& to) {
    HWY_DYNAMIC_DISPATCH(QuantizeRows)(rows, x, stride, to);
}

bool beats_fp32(const QuantizedMatrix& weights) {
    return HWY_DYNAMIC_DISPATCH(BeatsFp32)(weights);
}

void store_block(std::byte* block, int bits, int lane, const QuantizedBlock& weights) {
    const int lines = bits;  // of 16 words each
    for (int j = 0; j < lines; ++j)
        std::memcpy(block + (j * quantized_outputs + lane) * 4, weights.codes + 4 * j, 4);
    std::byte* factors = block + lines * quantized_outputs * 4;
    std::memcpy(factors + 2 * lane, &weights.scale, 2);
    std::memcpy(factors + 2 * (quantized_outputs + lane), &weights.offset, 2);
}

QuantizedRows QuantizedRows::at(std::byte* memory, int rows, int inputs, int bits) {
    const std::size_t blocks = std::size_t(rows) * std::size_t(inputs / quantized_inputs);
    auto* scales = reinterpret_cast<float*>(memory);
    auto* codes = reinterpret_cast<std::int8_t*>(scales + 2 * blocks);
    return {codes, bits > 8 ? codes + std::size_t(rows) * stride(inputs) : nullptr, scales, scales + blocks,
            inputs};
}

}  // namespace holdfast
#endif
