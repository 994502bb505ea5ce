// How much of a context is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "holdfast/export.h"

namespace holdfast {

// "20%" of the context, or tokens per KV head on average; both include the observation window.
struct HOLDFAST_API Budget {
    double value = 1.0;
    bool fraction = true;

    static Budget everything() { return {}; }
    // "20%", "12.5%" or "1024"; throws Error (usage) for what isn't above 0, or above 100%.
    static Budget parse(const std::string& text);
    std::string name() const;  // as parse() reads it

    // n·ρ: kept tokens per KV head on average, of n; at most n.
    double tokens_per_head(std::uint32_t n) const;
    // ⌊n·ρ·heads⌋: kept entries of `heads` KV heads together.
    std::size_t entries(std::uint32_t n, std::size_t heads) const;
};

// ⌊x⌋ that forgives the rounding of a product: 0.2 · 1000 is 200.
HOLDFAST_API std::size_t floor_count(double x);

}  // namespace holdfast
