#include "eval/characters.hpp"

#include <utf8proc.h>

#include <algorithm>

namespace holdfast {

std::u32string decode_utf8(std::string_view utf8) {
    std::u32string text;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
    for (std::size_t i = 0; i < utf8.size();) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t length = utf8proc_iterate(bytes + i, utf8proc_ssize_t(utf8.size() - i), &code);
        text += length > 0 ? char32_t(code) : U'\uFFFD';
        i += std::size_t(std::max<utf8proc_ssize_t>(1, length));
    }
    return text;
}

void append_utf8(std::u32string_view text, std::string& utf8) {
    for (char32_t c : text) {
        utf8proc_uint8_t bytes[4];
        utf8.append(reinterpret_cast<const char*>(bytes),
                    std::size_t(utf8proc_encode_char(utf8proc_int32_t(c), bytes)));
    }
}

bool is_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

}  // namespace holdfast
