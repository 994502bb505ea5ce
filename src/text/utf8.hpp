#pragma once

#include <string>
#include <string_view>

namespace holdfast {

// Length of the valid UTF-8 sequence at the start of `text`; 0 if there is none. Overlong forms,
// surrogates and code points above U+10FFFF aren't valid. An unfinished sequence gives 0 too.
std::size_t utf8_sequence(std::string_view text);

bool is_utf8(std::string_view text);

// Turns bytes that arrive in pieces into valid UTF-8: holds an unfinished character back until its rest
// comes, and puts U+FFFD in the place of bytes that can't become one.
class Utf8Stream {
  public:
    std::string push(std::string_view bytes);
    std::string finish();  // what was held back, as U+FFFD

  private:
    std::string pending_;
};

}  // namespace holdfast
