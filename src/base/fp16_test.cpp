#include "base/fp16.hpp"

#include <gtest/gtest.h>

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

// Breaks if rounding isn't to nearest even: the compiler's own conversion is the truth.
TEST(Fp16, RoundsToNearestEven) {
    std::uint32_t state = 1;
    for (int i = 0; i < 1000000; ++i) {
        state = state * 1664525u + 1013904223u;
        const float value = std::bit_cast<float>(state);
        if (std::isnan(value)) continue;
        const auto expected = std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
        ASSERT_EQ(fp32_to_fp16(value), expected) << value;
    }
}

}  // namespace
}  // namespace holdfast
