#include "eval/metrics.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>

#include "holdfast/error.hpp"
#include "eval/characters.hpp"
#include "eval/chinese_words.hpp"

namespace holdfast {

namespace {

using Text = std::u32string;

Text lower(Text text) {
    for (char32_t& c : text) c = char32_t(utf8proc_tolower(utf8proc_int32_t(c)));
    return text;
}

// \w of Python's regular expressions.
bool is_word(char32_t c) {
    if (c == '_') return true;
    switch (utf8proc_category(utf8proc_int32_t(c))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_NO:
            return true;
        default:
            return false;
    }
}

bool is_punctuation(char32_t c) {  // ASCII
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
}

std::vector<Text> words_of(const Text& text) {
    std::vector<Text> words;
    Text word;
    for (char32_t c : text) {
        if (!is_space(c)) {
            word += c;
        } else if (!word.empty()) {
            words.push_back(word);
            word.clear();
        }
    }
    if (!word.empty()) words.push_back(word);
    return words;
}

// Lower case, no punctuation, no articles as whole words; split into words.
std::vector<Text> answer_words(std::string_view utf8) {
    Text text;
    for (char32_t c : lower(decode_utf8(utf8)))
        if (!is_punctuation(c)) text += c;
    Text kept;
    for (std::size_t i = 0; i < text.size();) {
        std::size_t end = i;
        while (end < text.size() && is_word(text[end])) ++end;
        const Text word = text.substr(i, end - i);
        if (word == U"a" || word == U"an" || word == U"the")
            kept += U' ';
        else
            kept += word;
        if (end == i) kept += text[end++];
        i = end;
    }
    return words_of(kept);
}

double f1(const std::vector<Text>& prediction, const std::vector<Text>& answer) {
    std::map<Text, int> left;
    for (const Text& word : answer) ++left[word];
    int common = 0;
    for (const Text& word : prediction)
        if (left[word]-- > 0) ++common;
    if (common == 0) return 0;
    const double precision = 1.0 * common / double(prediction.size()),
                 recall = 1.0 * common / double(answer.size());
    return 2 * precision * recall / (precision + recall);
}

// Sentences as the original has them: split at full stops, single spaces between words. A sentence without
// any word counts as one empty word.
std::vector<std::vector<Text>> sentences_of(std::string_view utf8) {
    std::vector<std::vector<Text>> sentences;
    const Text text = decode_utf8(utf8);
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(U'.', begin), text.size());
        if (end > begin) {
            sentences.push_back(words_of(text.substr(begin, end - begin)));
            if (sentences.back().empty()) sentences.back().emplace_back();
        }
        begin = end + 1;
    }
    return sentences;
}

// The words of a longest common subsequence; where there are several, the one that the original finds.
void add_common_subsequence(const std::vector<Text>& x, const std::vector<Text>& y, std::set<Text>& to) {
    const std::size_t width = y.size() + 1;
    std::vector<std::uint32_t> length((x.size() + 1) * width);
    for (std::size_t i = 1; i <= x.size(); ++i)
        for (std::size_t j = 1; j <= y.size(); ++j)
            length[i * width + j] = x[i - 1] == y[j - 1]
                                        ? length[(i - 1) * width + j - 1] + 1
                                        : std::max(length[(i - 1) * width + j], length[i * width + j - 1]);
    for (std::size_t i = x.size(), j = y.size(); i > 0 && j > 0;) {
        if (x[i - 1] == y[j - 1]) {
            to.insert(x[i - 1]);
            --i, --j;
        } else if (length[(i - 1) * width + j] > length[i * width + j - 1]) {
            --i;
        } else {
            --j;
        }
    }
}

double rouge_l(std::string_view prediction, std::string_view answer) {
    const auto ours = sentences_of(prediction), theirs = sentences_of(answer);
    if (ours.empty() || theirs.empty()) return 0;
    std::set<Text> our_words, their_words, common;
    for (const auto& sentence : ours) our_words.insert(sentence.begin(), sentence.end());
    for (const auto& sentence : theirs) their_words.insert(sentence.begin(), sentence.end());
    for (const auto& reference : theirs)
        for (const auto& sentence : ours) add_common_subsequence(reference, sentence, common);
    const double recall = double(common.size()) / double(their_words.size()),
                 precision = double(common.size()) / double(our_words.size());
    return 2 * precision * recall / (precision + recall + 1e-8);
}

// Runs of decimal digits.
std::vector<Text> numbers_of(const Text& text) {
    std::vector<Text> numbers;
    bool inside = false;
    for (char32_t c : text) {
        const bool digit = utf8proc_category(utf8proc_int32_t(c)) == UTF8PROC_CATEGORY_ND;
        if (digit && !inside) numbers.emplace_back();
        if (digit) numbers.back() += c;
        inside = digit;
    }
    return numbers;
}

double share_of_numbers(std::string_view prediction, const Text& wanted) {
    const std::vector<Text> numbers = numbers_of(decode_utf8(prediction));
    return numbers.empty()
               ? 0
               : double(std::count(numbers.begin(), numbers.end(), wanted)) / double(numbers.size());
}

// mark: what stands before the number in the answer.
double retrieval(std::string_view prediction, std::string_view answer, const Text& mark) {
    const Text text = decode_utf8(answer);
    for (std::size_t at = text.find(mark); at != Text::npos; at = text.find(mark, at + 1)) {
        std::size_t end = at + mark.size();
        while (end < text.size() && utf8proc_category(utf8proc_int32_t(text[end])) == UTF8PROC_CATEGORY_ND)
            ++end;
        if (end > at + mark.size())
            return share_of_numbers(prediction, text.substr(at + mark.size(), end - at - mark.size()));
    }
    std::string form;
    append_utf8(mark, form);
    throw Error("the answer '" + std::string(answer) + "' of a retrieval task names no \"" + form + "N\"");
}

std::vector<Text> chinese_answer_words(std::string_view utf8) {
    static const Text punctuation =
        U"！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗"
        U"〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";
    std::vector<Text> words;
    for (const Text& word : ChineseWords::shared().split(decode_utf8(utf8))) {
        Text kept;
        for (char32_t c : lower(word))
            if (!is_punctuation(c) && !is_space(c) && punctuation.find(c) == Text::npos) kept += c;
        if (!kept.empty()) words.push_back(kept);
    }
    return words;
}

std::string spaced_chinese_words(std::string_view utf8) {
    std::string spaced;
    for (const Text& word : ChineseWords::shared().split(decode_utf8(utf8))) {
        if (!spaced.empty()) spaced += ' ';
        append_utf8(word, spaced);
    }
    return spaced;
}

double classification(std::string_view prediction, const std::string& answer,
                      const std::vector<std::string>& classes) {
    std::vector<std::string> named;
    for (const std::string& name : classes)
        if (prediction.find(name) != std::string_view::npos) named.push_back(name);
    // The original removes while it goes through the list, and so passes over what follows a removed name.
    for (std::size_t i = 0; i < named.size(); ++i) {
        const std::string name = named[i];
        if (answer.find(name) != std::string::npos && name != answer)
            named.erase(std::find(named.begin(), named.end(), name));
    }
    return std::find(named.begin(), named.end(), answer) == named.end() ? 0 : 1.0 / double(named.size());
}

// Characters in matching blocks, as Python's difflib finds them: the longest block, then left and right of
// it. In texts of 200 characters and more, those that make up over 1% of the second don't begin a block.
class MatchingBlocks {
  public:
    MatchingBlocks(const Text& a, const Text& b) : a_(a), b_(b) {
        for (std::size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
        const std::size_t popular = b.size() / 100 + 1;
        if (b.size() >= 200)
            std::erase_if(places_, [&](const auto& place) { return place.second.size() > popular; });
    }

    std::size_t matches() const { return matches(0, a_.size(), 0, b_.size()); }

  private:
    std::size_t matches(std::size_t a_begin, std::size_t a_end, std::size_t b_begin,
                        std::size_t b_end) const {
        std::size_t a = a_begin, b = b_begin, size = 0;
        std::unordered_map<std::size_t, std::size_t> lengths;  // of the block that ends at each place of b
        for (std::size_t i = a_begin; i < a_end; ++i) {
            std::unordered_map<std::size_t, std::size_t> next;
            if (const auto places = places_.find(a_[i]); places != places_.end())
                for (std::size_t j : places->second) {
                    if (j < b_begin) continue;
                    if (j >= b_end) break;
                    const auto before = j == 0 ? lengths.end() : lengths.find(j - 1);
                    const std::size_t length = (before == lengths.end() ? 0 : before->second) + 1;
                    next[j] = length;
                    if (length > size) a = i + 1 - length, b = j + 1 - length, size = length;
                }
            lengths = std::move(next);
        }
        while (a > a_begin && b > b_begin && a_[a - 1] == b_[b - 1]) --a, --b, ++size;
        while (a + size < a_end && b + size < b_end && a_[a + size] == b_[b + size]) ++size;
        if (size == 0) return 0;
        return size + matches(a_begin, a, b_begin, b) + matches(a + size, a_end, b + size, b_end);
    }

    const Text &a_, &b_;
    std::map<char32_t, std::vector<std::size_t>> places_;
};

double code_similarity(std::string_view prediction, std::string_view answer) {
    // The first line that isn't a comment or a fence.
    const std::size_t start = std::min(prediction.find_first_not_of('\n'), prediction.size());
    prediction.remove_prefix(start);
    std::string_view line;
    for (bool more = true; more;) {
        const std::size_t end = prediction.find('\n');
        more = end != std::string_view::npos;
        const std::string_view candidate = prediction.substr(0, end);
        if (candidate.find('`') == std::string_view::npos && candidate.find('#') == std::string_view::npos &&
            candidate.find("//") == std::string_view::npos) {
            line = candidate;
            break;
        }
        if (more) prediction.remove_prefix(end + 1);
    }
    const Text ours = decode_utf8(line), theirs = decode_utf8(answer);
    if (ours == theirs) return 1;
    if (ours.empty() || theirs.empty()) return 0;
    const double ratio =
        2.0 * double(MatchingBlocks(ours, theirs).matches()) / double(ours.size() + theirs.size());
    return std::nearbyint(100 * ratio) / 100;  // halves to even, as the original's
}

double score_one(Metric metric, std::string_view prediction, const std::string& answer,
                 const std::vector<std::string>& classes) {
    switch (metric) {
        case Metric::f1:
            return f1(answer_words(prediction), answer_words(answer));
        case Metric::rouge_l:
            return rouge_l(prediction, answer);
        case Metric::classification:
            return classification(prediction, answer, classes);
        case Metric::retrieval:
            return retrieval(prediction, answer, U"Paragraph ");
        case Metric::f1_zh:
            return f1(chinese_answer_words(prediction), chinese_answer_words(answer));
        case Metric::rouge_l_zh:
            return rouge_l(spaced_chinese_words(prediction), spaced_chinese_words(answer));
        case Metric::retrieval_zh:
            return retrieval(prediction, answer, U"段落");
        case Metric::count:
            return share_of_numbers(prediction, decode_utf8(answer));
        case Metric::code_sim:
            return code_similarity(prediction, answer);
        case Metric::string_match_all:
        case Metric::string_match_part:
            return lower(decode_utf8(prediction)).find(lower(decode_utf8(answer))) == Text::npos ? 0 : 1;
    }
    return 0;
}

constexpr const char* names[] = {"string_match_all",
                                 "string_match_part",
                                 "f1",
                                 "rouge_l",
                                 "classification",
                                 "retrieval",
                                 "count",
                                 "code_sim",
                                 "f1_zh",
                                 "rouge_l_zh",
                                 "retrieval_zh"};

}  // namespace

Metric parse_metric(const std::string& name) {
    std::string known;
    for (std::size_t i = 0; i < std::size(names); ++i) {
        if (name == names[i]) return Metric(i);
        known += (i == 0 ? "" : ", ") + std::string(names[i]);
    }
    throw Error("no metric '" + name + "'; there are: " + known, Error::Kind::usage);
}

const char* metric_name(Metric metric) {
    return names[std::size_t(metric)];
}

double score(Metric metric, std::string_view prediction, const std::vector<std::string>& answers,
             const std::vector<std::string>& classes) {
    double best = 0, sum = 0;
    for (const std::string& answer : answers) {
        const double one = score_one(metric, prediction, answer, classes);
        best = std::max(best, one);
        sum += one;
    }
    return metric == Metric::string_match_all ? sum / double(answers.size()) : best;
}

}  // namespace holdfast
