#include "text/utf8.hpp"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

const std::string mixed = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";  // a é € 😀 z

// Breaks if an invalid form passes: overlong, surrogate, above U+10FFFF, lone or missing continuation.
TEST(Utf8, Validity) {
    EXPECT_TRUE(is_utf8(mixed));
    EXPECT_TRUE(is_utf8(""));
    for (const char* bad :
         {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xC3(", "a\xFFz"})
        EXPECT_FALSE(is_utf8(bad));
}

// Breaks if a character that arrives in pieces comes out broken or late.
TEST(Utf8Stream, JoinsPieces) {
    for (std::size_t cut = 0; cut <= mixed.size(); ++cut) {
        Utf8Stream stream;
        std::string out = stream.push(mixed.substr(0, cut));
        EXPECT_TRUE(is_utf8(out));
        out += stream.push(mixed.substr(cut));
        out += stream.finish();
        EXPECT_EQ(out, mixed);
    }
}

// Breaks if bytes that can't become a character get out, or swallow the valid ones behind them.
TEST(Utf8Stream, ReplacesWhatIsNone) {
    Utf8Stream stream;
    EXPECT_EQ(stream.push("a\xFFz\xE2\x82"), "a\xEF\xBF\xBDz");
    EXPECT_EQ(stream.push("q"), "\xEF\xBF\xBD\xEF\xBF\xBDq");
    EXPECT_EQ(stream.push("\xF0\x9F"), "");
    EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
    EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace holdfast
