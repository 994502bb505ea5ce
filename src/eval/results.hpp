// The lines of results.jsonl, one for each sample, method and budget.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace holdfast {

struct SampleResult {
    std::string task;
    std::string sample;          // "FILE:LINE", without the file's folder
    std::string prompt;          // hash of its tokens
    std::string method, budget;  // "20%"; "100%" for full
    bool question_aware = false;
    bool chat_template = false;    // of the model, around the prompt
    std::uint32_t tokens = 0;      // of the context as read
    std::uint32_t cut_tokens = 0;  // that its middle lost before
    double score = 0;              // 0 to 1
    std::string metric;            // its name
    std::string answer;
    std::vector<std::string> answers;          // that are right
    double kept_mean = 0;                      // entries of a head
    std::vector<std::uint32_t> kept_by_layer;  // all its heads together
    std::size_t cache_bytes = 0;               // of the kept keys and values
    int answer_tokens = 0;
    double prefill_seconds = 0, compression_seconds = 0;
    double question_seconds = 0;  // to read question and answer prefix on the kept cache
    double answer_seconds = 0;
};

// One line, with its end.
std::string result_line(const SampleResult& result);

struct ResultFile {
    std::vector<SampleResult> results;  // each sample, method and budget once: the first
    std::size_t whole = 0;              // bytes up to the end of the last whole line
};

// A file that isn't there has no results; a last line that a kill cut off doesn't count. Throws Error that
// names file and line for any other line that isn't a result.
ResultFile read_results(const std::string& path);

}  // namespace holdfast
