#include "base/fp16.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace holdfast {
namespace {

// Breaks if a half is decoded or encoded wrongly: all 65,536 survive the way to fp32 and back.
TEST(Fp16, EveryHalfSurvivesTheWayToFp32AndBack) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const float value = fp16_to_fp32(fp16_t(bits));
        if (std::isnan(value))
            EXPECT_TRUE(std::isnan(fp16_to_fp32(fp32_to_fp16(value)))) << bits;
        else
            EXPECT_EQ(fp32_to_fp16(value), bits);
    }
}

// Breaks if rounding isn't to nearest even. The truth: a half has 11 significant bits down to 2^-14 and
// steps of 2^-24 below, so dividing by the step and rounding to an integer gives it.
TEST(Fp16, RoundsToNearestEven) {
    std::uint32_t state = 1;
    for (int i = 0; i < 1000000; ++i) {
        state = state * 1664525u + 1013904223u;
        const float value = std::bit_cast<float>(state);
        if (!std::isfinite(value)) continue;
        const int exponent = value == 0 ? -14 : std::max(std::ilogb(value), -14);
        const double step = std::ldexp(1.0, exponent - 10);
        double expected = std::nearbyint(double(value) / step) * step;
        if (std::abs(expected) > 65504) expected = std::copysign(INFINITY, expected);
        ASSERT_EQ(double(fp16_to_fp32(fp32_to_fp16(value))), expected) << value;
    }
}

}  // namespace
}  // namespace holdfast
