// Tasks to evaluate: a context, a question, what the answer begins with, and the answers that are right.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
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
    bool chat_template = true;  // a user's turn, if the model has a template
    bool cut_middle = false;    // a context that is too long loses its middle; otherwise it is refused
    bool first_line = false;    // the answer ends with its first line, empty ones before it aside

    // "FILE:LINE" without the file's folder: with the prompt's hash, what results are found again by.
    std::string name() const { return id.substr(id.rfind('/') + 1); }
};

// One sample a line: {"task", "context", "question", "answer_prefix", "answers", "max_new_tokens", "metric"},
// for classification "classes", and the switches by their names. Throws Error that names file and line for
// what isn't such a sample.
std::vector<Sample> read_samples(const std::string& path);
void write_samples(const std::string& path, const std::vector<Sample>& samples);

// Calls take(object, "FILE:LINE") for each line that isn't blank; whatever it throws becomes an Error that
// names file and line. Throws Error for a file that can't be opened or has no such line.
void read_json_lines(const std::string& path,
                     const std::function<void(const nlohmann::json& object, const std::string& id)>& take);

}  // namespace holdfast
