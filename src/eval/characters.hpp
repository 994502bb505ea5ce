// Unicode text as Python's strings see it, for metrics that were defined in Python.
#pragma once

#include <string>
#include <string_view>

namespace holdfast {

// What isn't UTF-8 becomes U+FFFD.
std::u32string decode_utf8(std::string_view utf8);
void append_utf8(std::u32string_view text, std::string& utf8);

// What str.split() splits at, and \s of regular expressions.
bool is_space(char32_t c);

}  // namespace holdfast
