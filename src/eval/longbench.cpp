#include "eval/longbench.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "holdfast/error.hpp"
#include "longbench_json.hpp"

namespace holdfast {

namespace {

// Dataset, texts before and after the context ("{input}" stands for the question), and how to answer.
const nlohmann::json& table() {
    static const nlohmann::json json = nlohmann::json::parse(longbench_json[0]);
    return json;
}

Sample parse_sample(const nlohmann::json& row, const nlohmann::json& published) {
    Sample sample;
    sample.task = row.at("dataset");
    sample.context = row.at("before").get<std::string>() + published.at("context").get<std::string>();
    sample.question = row.at("after");
    const std::string mark = "{input}", input = published.at("input");
    if (const std::size_t at = sample.question.find(mark); at != std::string::npos)
        sample.question.replace(at, mark.size(), input);
    sample.answers = published.at("answers").get<std::vector<std::string>>();
    if (sample.answers.empty()) throw Error("there is no answer");
    sample.most_tokens = row.at("max_new_tokens");
    sample.metric = parse_metric(row.at("metric"));
    if (sample.metric == Metric::classification)
        sample.classes = published.at("all_classes").get<std::vector<std::string>>();
    sample.chat_template = row.value("chat_template", true);
    sample.first_line = row.value("first_line", false);
    sample.cut_middle = true;
    return sample;
}

}  // namespace

const std::vector<std::string>& longbench_datasets() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const nlohmann::json& row : table()) all.push_back(row.at("dataset"));
        return all;
    }();
    return names;
}

std::vector<Sample> read_longbench(const std::string& folder, const std::string& dataset, int most) {
    const nlohmann::json& row =
        *std::ranges::find_if(table(), [&](const auto& r) { return r.at("dataset") == dataset; });
    std::vector<Sample> samples;
    read_json_lines(folder + "/" + dataset + ".jsonl",
                    [&](const nlohmann::json& json, const std::string& id) {
                        if (most > 0 && int(samples.size()) == most) return;
                        samples.push_back(parse_sample(row, json));
                        samples.back().id = id;
                    });
    return samples;
}

}  // namespace holdfast
