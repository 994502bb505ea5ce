#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdio>
#include <string>

namespace holdfast {

// XXH3 of bytes that come in parts, as 16 hex digits.
class Hash {
  public:
    Hash() { XXH3_64bits_reset(&state_); }
    void add(const void* data, std::size_t bytes) { XXH3_64bits_update(&state_, data, bytes); }
    std::string hex() const {
        char digits[17];
        std::snprintf(digits, sizeof digits, "%016llx",
                      static_cast<unsigned long long>(XXH3_64bits_digest(&state_)));
        return digits;
    }

  private:
    XXH3_state_t state_;
};

}  // namespace holdfast
