#include "holdfast/budget.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "holdfast/error.hpp"

namespace holdfast {

Budget Budget::parse(const std::string& text) {
    const bool percent = !text.empty() && text.back() == '%';
    const char* begin = text.data();
    const char* end = begin + text.size() - (percent ? 1 : 0);
    double value = 0;
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stop != end || !std::isfinite(value))
        throw Error("budget '" + text + "' is neither a share like 20% nor a number of tokens like 1024",
                    Error::Kind::usage);
    if (percent) {
        if (value <= 0 || value > 100)
            throw Error("budget '" + text + "' must be above 0% and at most 100%", Error::Kind::usage);
        return {value / 100, true};
    }
    if (value < 1 || value != std::floor(value))
        throw Error(
            "budget '" + text + "' must be a whole number of tokens, at least 1; a share is written with %",
            Error::Kind::usage);
    return {value, false};
}

std::string Budget::name() const {
    char digits[32];
    const std::to_chars_result end = std::to_chars(
        digits, digits + sizeof digits, fraction ? 100 * value : value, std::chars_format::general, 12);
    return std::string(digits, end.ptr) + (fraction ? "%" : "");
}

double Budget::tokens_per_head(std::uint32_t n) const {
    return std::min<double>(n, fraction ? double(n) * value : value);
}

std::size_t Budget::entries(std::uint32_t n, std::size_t heads) const {
    return floor_count(tokens_per_head(n) * double(heads));
}

std::size_t floor_count(double x) {
    return std::size_t(std::floor(x + 1e-9));
}

}  // namespace holdfast
