#include "eval/chinese_words.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "holdfast/error.hpp"
#include "engine/cache_folder.hpp"
#include "eval/characters.hpp"

namespace holdfast {

namespace {

// States of a character in its word, in the order in which ties are decided: the last wins.
enum State { begins, ends, middle, single, states };
constexpr std::string_view letters = "BEMS";
constexpr double never = -3.14e100;

constexpr double start[states] = {-0.26268660809250016, never, never, -1.4652633398537678};
constexpr double transition[states][states] = {
    {never, -0.510825623765990, -0.916290731874155, never},
    {-0.5897149736854513, never, never, -0.8085250474669937},
    {never, -0.33344856811948514, -1.2603623820268226, never},
    {-0.7211965654669841, never, never, -0.6658631448798212},
};

bool is_han(char32_t c) {
    return c >= 0x4E00 && c <= 0x9FD5;
}

bool is_alphanumeric(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// What the dictionary is asked about.
bool is_of_block(char32_t c) {
    return is_han(c) || is_alphanumeric(c) ||
           std::u32string_view(U"+#&._%-").find(c) != std::u32string_view::npos;
}

// The end of the run from `begin` on in which `property` stays as it is there.
template <typename Property>
std::size_t run_end(std::u32string_view text, std::size_t begin, Property property) {
    std::size_t end = begin + 1;
    while (end < text.size() && property(text[end]) == property(text[begin])) ++end;
    return end;
}

// Letters and digits, decimals behind a point, a per cent sign: the length of such a word at the beginning.
std::size_t number_or_name(std::u32string_view text) {
    std::size_t end = 0;
    while (end < text.size() && is_alphanumeric(text[end])) ++end;
    if (end == 0) return 0;
    const auto digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    if (end < text.size() && text[end] == '.' && digit(end + 1))
        for (++end; digit(end);) ++end;
    if (end < text.size() && text[end] == '%') ++end;
    return end;
}

}  // namespace

ChineseWords::ChineseWords(const std::string& folder) {
    std::ifstream dictionary(folder + "/dict.txt"), model(folder + "/hmm.txt");
    const auto bad_line = [&](const char* name, const std::string& line) {
        std::string message = "'" + folder;
        message.append("/").append(name).append("': a line that isn't one of its: ").append(line);
        return Error(message);
    };
    std::int64_t total = 0;
    for (std::string line; std::getline(dictionary, line);) {
        std::istringstream fields(line);
        std::string word;
        std::int64_t number = 0;
        if (!(fields >> word >> number)) throw bad_line("dict.txt", line);
        const std::u32string text = decode_utf8(word);
        counts_[text] = number;
        total += number;
        for (std::size_t length = 1; length < text.size(); ++length)
            counts_.try_emplace(text.substr(0, length), 0);
    }
    std::size_t characters = 0;
    for (std::string line; std::getline(model, line); ++characters) {
        std::istringstream fields(line);
        std::string state, character;
        double probability = 0;
        fields >> state >> character >> probability;
        const std::size_t index = letters.find(state);
        if (!fields || state.size() != 1 || index == std::string_view::npos) throw bad_line("hmm.txt", line);
        emission_[index][decode_utf8(character).at(0)] = probability;
    }
    if (total == 0 || characters == 0)
        throw Error("metrics of Chinese words need the dictionary of jieba in '" + folder +
                    "': scripts/fetch.sh jieba brings it");
    log_total_ = std::log(double(total));
}

const ChineseWords& ChineseWords::shared() {
    static const ChineseWords words(cache_folder() + "/jieba");
    return words;
}

std::int64_t ChineseWords::count(std::u32string_view word) const {
    const auto found = counts_.find(std::u32string(word));
    return found == counts_.end() ? -1 : found->second;
}

std::vector<std::u32string> ChineseWords::split(std::u32string_view text) const {
    std::vector<std::u32string> words;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = run_end(text, begin, is_of_block);
        const std::u32string_view run = text.substr(begin, end - begin);
        if (is_of_block(run[0])) {
            split_block(run, words);
        } else {
            for (std::size_t i = 0; i < run.size(); ++i) {
                words.emplace_back(1, run[i]);
                if (run[i] == '\r' && i + 1 < run.size() && run[i + 1] == '\n') words.back() += run[++i];
            }
        }
        begin = end;
    }
    return words;
}

void ChineseWords::split_block(std::u32string_view block, std::vector<std::u32string>& words) const {
    // From the end: the best log-probability of the rest, and where its first word ends.
    const std::size_t n = block.size();
    std::vector<double> best(n + 1, 0);
    std::vector<std::size_t> first_end(n + 1, n);
    for (std::size_t i = n; i-- > 0;) {
        best[i] = -INFINITY;
        const auto try_end = [&](std::size_t end, std::int64_t number) {
            const double value = std::log(double(std::max<std::int64_t>(1, number))) - log_total_ + best[end];
            if (value >= best[i]) best[i] = value, first_end[i] = end;  // of equals the longest
        };
        bool any = false;
        for (std::size_t end = i + 1; end <= n; ++end) {
            const std::int64_t number = count(block.substr(i, end - i));
            if (number < 0) break;
            if (number == 0) continue;
            try_end(end, number);
            any = true;
        }
        if (!any) try_end(i + 1, std::max<std::int64_t>(0, count(block.substr(i, 1))));
    }
    std::size_t singles = 0;  // single characters before i
    const auto end_singles = [&](std::size_t i) {
        if (singles > 0) split_singles(block.substr(i - singles, singles), words);
        singles = 0;
    };
    for (std::size_t i = 0; i < n; i = first_end[i]) {
        if (first_end[i] == i + 1) {
            ++singles;
        } else {
            end_singles(i);
            words.emplace_back(block.substr(i, first_end[i] - i));
        }
    }
    end_singles(n);
}

void ChineseWords::split_singles(std::u32string_view run, std::vector<std::u32string>& words) const {
    if (run.size() == 1 || count(run) > 0) {
        for (char32_t c : run) words.emplace_back(1, c);
        return;
    }
    for (std::size_t begin = 0; begin < run.size();) {
        const std::size_t end = run_end(run, begin, is_han);
        const std::u32string_view part = run.substr(begin, end - begin);
        if (is_han(part[0])) {
            split_unknown(part, words);
        } else {
            for (std::size_t i = 0, between = 0; i < part.size();) {
                if (const std::size_t length = number_or_name(part.substr(i))) {
                    words.emplace_back(part.substr(i, length));
                    i += length;
                    between = i;
                    continue;
                }
                ++i;
                if (i == part.size() || is_alphanumeric(part[i]))
                    words.emplace_back(part.substr(between, i - between));
            }
        }
        begin = end;
    }
}

// Viterbi: the most likely states of the characters.
void ChineseWords::split_unknown(std::u32string_view run, std::vector<std::u32string>& words) const {
    const auto emission = [&](int state, char32_t c) {
        const auto found = emission_[std::size_t(state)].find(c);
        return found == emission_[std::size_t(state)].end() ? never : found->second;
    };
    const std::size_t n = run.size();
    std::vector<std::array<double, states>> best(n);
    std::vector<std::array<int, states>> before(n);
    for (int s = 0; s < states; ++s) best[0][std::size_t(s)] = start[s] + emission(s, run[0]);
    for (std::size_t i = 1; i < n; ++i)
        for (int s = 0; s < states; ++s) {
            // Words begin, and single characters stand, behind ends and singles; the others behind the rest.
            const bool starts_word = s == begins || s == single;
            const double own = emission(s, run[i]);
            bool first = true;
            for (int from : starts_word ? std::array{ends, single} : std::array{begins, middle}) {
                const double value = best[i - 1][std::size_t(from)] + transition[from][s] + own;
                if (first || value >= best[i][std::size_t(s)])
                    best[i][std::size_t(s)] = value, before[i][std::size_t(s)] = from;
                first = false;
            }
        }
    std::vector<int> path(n);
    path[n - 1] = best[n - 1][single] >= best[n - 1][ends] ? single : ends;
    for (std::size_t i = n - 1; i > 0; --i) path[i - 1] = before[i][std::size_t(path[i])];
    std::size_t begin = 0;
    for (std::size_t i = 0; i < n; ++i)
        if (path[i] == ends || path[i] == single) {
            words.emplace_back(run.substr(begin, i + 1 - begin));
            begin = i + 1;
        }
}

}  // namespace holdfast
