// RULER's tasks, generated for any tokenizer and length (docs/evaluation.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/samples.hpp"

namespace holdfast {

// All 13, in their order.
const std::vector<std::string>& ruler_tasks();

// What tasks are made of; what is empty makes those that need it impossible.
struct RulerMaterial {
    std::string essay;               // text: the haystack of most needle tasks
    std::vector<std::string> words;  // lower case, no two alike
    std::string squad, hotpotqa;     // JSON as published
};

// Words of a list, one a line: those of 4 to 9 letters a to z. Throws Error for fewer than a thousand.
std::vector<std::string> read_words(const std::string& path);
// A text file, or all *.txt of a folder, in the order of their names.
std::string read_haystack(const std::string& path);

struct RulerSettings {
    std::uint32_t length = 2048;  // tokens of the prompt and the answer together
    int samples = 10;             // of a task
    std::uint64_t seed = 1;
};

class RulerGenerator {
  public:
    // count(context, question, answer_prefix): tokens of the prompt that these make.
    using Count = std::function<std::size_t(const Sample&)>;

    RulerGenerator(RulerMaterial material, RulerSettings settings, Count count);
    ~RulerGenerator();

    // Empty if the task's material is there, otherwise what is missing.
    std::string missing(const std::string& task) const;
    // The index-th sample: the same for the same material, settings and tokenizer, whatever else is
    // generated. Throws Error if the length has no room for the task.
    Sample generate(const std::string& task, int index) const;

  private:
    struct Documents;
    RulerMaterial material_;
    RulerSettings settings_;
    Count count_;
    std::vector<std::string> essay_words_;
    std::unique_ptr<Documents> squad_, hotpotqa_;
};

}  // namespace holdfast
