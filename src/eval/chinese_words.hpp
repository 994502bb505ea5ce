// The words of a Chinese text, as the package jieba 0.42.1 finds them: the most likely way through its
// dictionary, and a hidden Markov model for runs of single characters between.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace holdfast {

class ChineseWords {
  public:
    // folder: with dict.txt ("WORD COUNT …" a line) and hmm.txt ("STATE CHARACTER LOG-PROBABILITY" a line).
    // Throws Error if they can't be read.
    explicit ChineseWords(const std::string& folder);

    // That of the per-user cache, which scripts/fetch.sh jieba fills; read on first use.
    static const ChineseWords& shared();

    // All of the text: words, and what is between them.
    std::vector<std::u32string> split(std::u32string_view text) const;

  private:
    void split_block(std::u32string_view block, std::vector<std::u32string>& words) const;
    void split_singles(std::u32string_view run, std::vector<std::u32string>& words) const;
    void split_unknown(std::u32string_view run, std::vector<std::u32string>& words) const;
    // 0 for what only begins a word; -1 for what doesn't.
    std::int64_t count(std::u32string_view word) const;

    std::unordered_map<std::u32string, std::int64_t> counts_;
    double log_total_ = 0;
    std::array<std::unordered_map<char32_t, double>, 4> emission_;  // of the states B, E, M, S
};

}  // namespace holdfast
