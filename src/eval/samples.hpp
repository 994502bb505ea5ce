// Tasks to evaluate: a context, a question, what the answer begins with, and the answers that are right.
#pragma once

#include <string>
#include <vector>

#include "eval/metrics.hpp"

namespace holdfast {

struct Sample {
    std::string id;  // "FILE:LINE"
    std::string task, context, question, answer_prefix;
    std::vector<std::string> answers, classes;
    int most_tokens = 0;
    Metric metric = Metric::f1;
};

// One sample a line: {"task", "context", "question", "answer_prefix", "answers", "max_new_tokens", "metric"}
// and for classification "classes". Throws Error that names file and line for what isn't such a sample.
std::vector<Sample> read_samples(const std::string& path);

}  // namespace holdfast
