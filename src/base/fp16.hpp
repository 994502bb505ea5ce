// IEEE 754 binary16, stored as its bits.
#pragma once

#include <bit>
#include <cstdint>

namespace holdfast {

using fp16_t = std::uint16_t;

// Exact.
inline float fp16_to_fp32(fp16_t half) {
    const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24
        const float magnitude = float(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even, as the processors' conversion instructions do.
inline fp16_t fp32_to_fp16(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));  // NaN
    if (magnitude >= 0x47800000u) return std::uint16_t(sign | 0x7c00u);  // 2^16 and above
    if (magnitude < 0x38800000u) {  // below 2^-14: let the adder round to a multiple of 2^-24
        const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
        return std::uint16_t(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
    }
    const std::uint32_t rounded = magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u);
    return std::uint16_t(sign | (rounded >> 13));
}

}  // namespace holdfast
