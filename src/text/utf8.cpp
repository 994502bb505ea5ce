#include "text/utf8.hpp"

#include <cstdint>

namespace holdfast {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

// How many bytes a sequence with this first byte has; 0 if none can begin with it.
std::size_t expected_length(unsigned char first) {
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first < 0xE0) return 2;
    if (first >= 0xE0 && first < 0xF0) return 3;
    if (first >= 0xF0 && first < 0xF5) return 4;
    return 0;
}

bool continues(std::string_view text, std::size_t i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80 || byte > 0xBF) return false;
    if (i > 1) return true;
    switch (static_cast<unsigned char>(text[0])) {
        case 0xE0:
            return byte >= 0xA0;  // overlong
        case 0xED:
            return byte < 0xA0;  // surrogates
        case 0xF0:
            return byte >= 0x90;  // overlong
        case 0xF4:
            return byte < 0x90;  // above U+10FFFF
        default:
            return true;
    }
}

// Whether `text`, too short for its first byte, may still become valid.
bool unfinished(std::string_view text) {
    const std::size_t length = expected_length(static_cast<unsigned char>(text[0]));
    if (text.size() >= length) return false;
    for (std::size_t i = 1; i < text.size(); ++i)
        if (!continues(text, i)) return false;
    return true;
}

}  // namespace

std::size_t utf8_sequence(std::string_view text) {
    if (text.empty()) return 0;
    const std::size_t length = expected_length(static_cast<unsigned char>(text[0]));
    if (length == 0 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i)
        if (!continues(text, i)) return 0;
    return length;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = utf8_sequence(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

std::string Utf8Stream::push(std::string_view bytes) {
    pending_ += bytes;
    std::string_view rest = pending_;
    std::string out;
    while (!rest.empty()) {
        const std::size_t length = utf8_sequence(rest);
        if (length > 0) {
            out += rest.substr(0, length);
        } else if (unfinished(rest)) {
            break;
        } else {
            out += replacement;
        }
        rest.remove_prefix(length > 0 ? length : 1);
    }
    pending_ = std::string(rest);
    return out;
}

std::string Utf8Stream::finish() {
    const bool held = !pending_.empty();
    pending_.clear();
    return held ? std::string(replacement) : std::string();
}

}  // namespace holdfast
