#include "eval/samples.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace holdfast {

namespace {

Sample parse_sample(const nlohmann::json& json) {
    Sample sample;
    const auto text = [&](const char* key) { return json.at(key).get<std::string>(); };
    sample.task = text("task");
    sample.context = text("context");
    sample.question = text("question");
    sample.answer_prefix = json.value("answer_prefix", "");
    sample.answers = json.at("answers").get<std::vector<std::string>>();
    sample.classes = json.value("classes", std::vector<std::string>());
    sample.most_tokens = json.at("max_new_tokens").get<int>();
    sample.metric = parse_metric(text("metric"));
    if (sample.context.empty()) throw Error("the context is empty");
    if (sample.answers.empty()) throw Error("there is no answer");
    if (sample.most_tokens < 1) throw Error("max_new_tokens must be at least 1");
    if (sample.metric == Metric::classification && sample.classes.empty())
        throw Error("classification needs \"classes\"");
    return sample;
}

}  // namespace

std::vector<Sample> read_samples(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw Error("cannot open the samples '" + path + "'");
    std::vector<Sample> samples;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string id = path + ":" + std::to_string(number);
        try {
            samples.push_back(parse_sample(nlohmann::json::parse(line)));
        } catch (const std::exception& error) {
            throw Error(id + ": no sample: " + error.what());
        }
        samples.back().id = id;
    }
    if (samples.empty()) throw Error("'" + path + "' holds no samples");
    return samples;
}

}  // namespace holdfast
