#include "engine/hidden_states.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ggml-cpu.h"

namespace holdfast {

HiddenStates::HiddenStates(std::uint32_t tokens, int width)
    : width_(std::size_t(width)),
      elements_(std::size_t(tokens) * width_ * sizeof(ggml_fp16_t)),
      exponents_(tokens) {}

void HiddenStates::store(std::uint32_t token, float* state) {
    std::int32_t bits = 0;  // without the sign: ordered like magnitudes
    for (std::size_t i = 0; i < width_; ++i)
        bits = std::max(bits, std::bit_cast<std::int32_t>(state[i]) & 0x7fffffff);
    const float largest = std::bit_cast<float>(bits);
    // The largest becomes 2^14 to 2^15. Of 0 and of what isn't finite no exponent exists.
    const bool scalable = largest > 0 && std::isfinite(largest);
    const int exponent = scalable ? std::max(-100, std::ilogb(largest) - 14) : 0;
    exponents_[token] = std::int8_t(exponent);
    const float factor = std::ldexp(1.0f, -exponent);
    for (std::size_t i = 0; i < width_; ++i) state[i] *= factor;
    ggml_cpu_fp32_to_fp16(state, elements_.as<ggml_fp16_t>() + token * width_, std::int64_t(width_));
}

void HiddenStates::load(std::uint32_t token, float* state) const {
    ggml_cpu_fp16_to_fp32(elements_.as<ggml_fp16_t>() + token * width_, state, std::int64_t(width_));
    const float factor = std::ldexp(1.0f, exponents_[token]);
    for (std::size_t i = 0; i < width_; ++i) state[i] *= factor;
}

std::size_t HiddenStates::bytes_for(std::uint32_t tokens, int width) {
    return std::size_t(tokens) * (std::size_t(width) * sizeof(ggml_fp16_t) + sizeof(std::int8_t));
}

}  // namespace holdfast
