// Which instruction sets the kernels were compiled for, and which one they use.
//
// Every kernel gives the same bits on every target and for every split of its rows: multiply-adds are
// fused everywhere (the portable target calls std::fma), sums run in one fixed order, and compilation
// forbids the compiler to contract other expressions. What an eviction method keeps can therefore not
// depend on the processor, but for models with 8-bit weights (beats_fp32() in quantized.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast {

struct SimdTarget {
    std::int64_t id;
    std::string name;  // Highway's: "AVX3" (AVX-512), "AVX2", "NEON", "EMU128" (portable)
};

// Those that were compiled and that this processor supports, best first.
std::vector<SimdTarget> simd_targets();

// Uses one of them from now on; not while a kernel runs. The environment variable HOLDFAST_SIMD does
// the same at start; a name that isn't among simd_targets() throws Error with the list.
void use_simd_target(const std::string& name);
std::string current_simd_target();

}  // namespace holdfast
