#include "eval/results.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {

// Calls field(name, member) for each, in the order of the line.
template <typename Result, typename Field>
void each_field(Result& r, const Field& field) {
    field("task", r.task);
    field("sample", r.sample);
    field("prompt", r.prompt);
    field("method", r.method);
    field("budget", r.budget);
    field("question_aware", r.question_aware);
    field("chat_template", r.chat_template);
    field("tokens", r.tokens);
    field("cut_tokens", r.cut_tokens);
    field("score", r.score);
    field("metric", r.metric);
    field("answer", r.answer);
    field("answers", r.answers);
    field("kept_mean", r.kept_mean);
    field("kept_by_layer", r.kept_by_layer);
    field("cache_bytes", r.cache_bytes);
    field("answer_tokens", r.answer_tokens);
    field("prefill_seconds", r.prefill_seconds);
    field("compression_seconds", r.compression_seconds);
    field("question_seconds", r.question_seconds);
    field("answer_seconds", r.answer_seconds);
}

}  // namespace

std::string result_line(const SampleResult& result) {
    nlohmann::ordered_json json;
    each_field(result, [&](const char* name, const auto& value) { json[name] = value; });
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ResultFile read_results(const std::string& path) {
    ResultFile content;
    std::set<std::tuple<std::string, std::string, std::string, std::string>> seen;
    std::ifstream file(path, std::ios::binary);
    int number = 0;
    for (std::string line; std::getline(file, line) && !file.eof();) {
        ++number;
        try {
            const nlohmann::json json = nlohmann::json::parse(line);
            SampleResult r;
            each_field(r, [&](const char* name, auto& value) { json.at(name).get_to(value); });
            if (seen.insert({r.sample, r.prompt, r.method, r.budget}).second)
                content.results.push_back(std::move(r));
        } catch (const nlohmann::json::exception& error) {
            throw Error(path + ":" + std::to_string(number) + ": no result: " + error.what());
        }
        content.whole += line.size() + 1;
    }
    return content;
}

}  // namespace holdfast
