#include "eval/samples.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "holdfast/error.hpp"
#include "base/whole_file.hpp"

namespace holdfast {

namespace {

Sample parse_sample(const nlohmann::json& json) {
    Sample sample;
    sample.chat_template = json.value("chat_template", true);
    sample.cut_middle = json.value("cut_middle", false);
    sample.first_line = json.value("first_line", false);
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

void read_json_lines(const std::string& path,
                     const std::function<void(const nlohmann::json&, const std::string&)>& take) {
    std::ifstream file(path);
    if (!file) throw Error("cannot open the samples '" + path + "'");
    int number = 0;
    bool any = false;
    for (std::string line; std::getline(file, line);) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        any = true;
        const std::string id = path + ":" + std::to_string(number);
        try {
            take(nlohmann::json::parse(line), id);
        } catch (const std::exception& error) {
            throw Error(id + ": no sample: " + error.what());
        }
    }
    if (!any) throw Error("'" + path + "' holds no samples");
}

std::vector<Sample> read_samples(const std::string& path) {
    std::vector<Sample> samples;
    read_json_lines(path, [&](const nlohmann::json& json, const std::string& id) {
        samples.push_back(parse_sample(json));
        samples.back().id = id;
    });
    return samples;
}

void write_samples(const std::string& path, const std::vector<Sample>& samples) {
    std::string lines;
    for (const Sample& s : samples) {
        nlohmann::ordered_json json = {{"task", s.task},
                                       {"context", s.context},
                                       {"question", s.question},
                                       {"answer_prefix", s.answer_prefix},
                                       {"answers", s.answers},
                                       {"max_new_tokens", s.most_tokens},
                                       {"metric", metric_name(s.metric)}};
        if (!s.classes.empty()) json["classes"] = s.classes;
        if (!s.chat_template) json["chat_template"] = false;
        if (s.cut_middle) json["cut_middle"] = true;
        if (s.first_line) json["first_line"] = true;
        lines += json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    write_whole_file(path, lines);
}

}  // namespace holdfast
