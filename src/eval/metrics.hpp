// The metrics of RULER and LongBench, equal to the originals: tests/metrics/make-vectors.py has their
// definitions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace holdfast {

enum class Metric {
    string_match_all,   // share of the answers that occur in the prediction
    string_match_part,  // 1 if one of them does
    f1,                 // of words, without articles, punctuation and case; the best over the answers
    rouge_l,            // summary level; the best over the answers
    classification,     // 1 / classes named, if the right one is among them
    retrieval,          // share of the numbers in the prediction that are the answer's "Paragraph N"
    count,              // share of the numbers in the prediction that are the answer
    code_sim,           // similarity of the first line of code, in hundredths
    f1_zh,              // of Chinese words, without punctuation; the best over the answers
    rouge_l_zh,         // of Chinese words
    retrieval_zh,       // as retrieval, of the answer's "段落N"
};

// Throws Error (usage) that lists the names.
Metric parse_metric(const std::string& name);
const char* metric_name(Metric metric);

// 0 to 1. answers: at least one; classes: of `classification`. All UTF-8. Throws Error for answers that the
// metric can't be of, and where the dictionary of Chinese words isn't there, whatever the prediction.
double score(Metric metric, std::string_view prediction, const std::vector<std::string>& answers,
             const std::vector<std::string>& classes = {});

}  // namespace holdfast
