#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "eval/evaluation.hpp"
#include "holdfast/engine.hpp"

namespace holdfast {

namespace {

struct EvalOptions {
    std::string model = default_model_path();
    ModelOptions model_options;
    std::vector<std::string> data;
    std::vector<std::string> methods = {"full", "snapkv", "layer-defensive"};
    std::vector<std::string> budgets = {"20%"};
    bool question_aware = false;
    int samples = 0;
    std::string folder;
    bool resume = false;
    int threads = int(std::max(1u, std::thread::hardware_concurrency()));
};

std::vector<Contestant> contestants_of(const EvalOptions& options) {
    std::vector<Contestant> contestants;
    for (const std::string& name : options.methods) {
        const Method method = Method::parse(name);
        if (method.keeps_all()) {
            contestants.push_back({name, "100%", {method, Budget::everything()}});
            continue;
        }
        for (const std::string& budget : options.budgets)
            contestants.push_back({name, budget, {method, Budget::parse(budget)}});
    }
    return contestants;
}

// Scores by task and contestant, from the lines of results.jsonl.
class Results {
  public:
    using Key = std::tuple<std::string, std::string, std::string>;  // prompt, method, budget

    // A last line that was cut off by a kill is dropped from the file.
    void load(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        std::string line;
        std::streamoff good = 0;
        while (std::getline(file, line)) {
            const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
            if (json.is_discarded() || file.eof()) break;
            add(json);
            good = file.tellg();
        }
        file.close();
        if (std::filesystem::exists(path)) std::filesystem::resize_file(path, std::uintmax_t(good));
    }

    void add(const nlohmann::json& json) {
        const Key key{json.at("prompt"), json.at("method"), json.at("budget")};
        if (!keys_.insert(key).second) return;
        scores_[json.at("task")][{std::get<1>(key), std::get<2>(key)}].push_back(json.at("score"));
    }
    bool has(const std::string& prompt, const Contestant& c) const {
        return keys_.contains({prompt, c.method, c.budget});
    }

    void print(const std::vector<Contestant>& contestants) const {
        std::size_t width = 14;
        for (const auto& [task, scores] : scores_) width = std::max(width, task.size() + 2);
        fmt::print("{:<{}}", "score, 0-100", width);
        for (const Contestant& c : contestants) fmt::print("{:>{}}", heading(c), heading(c).size() + 2);
        fmt::print("\n");
        std::map<std::pair<std::string, std::string>, double> sums;
        for (const auto& [task, scores] : scores_) {
            fmt::print("{:<{}}", task, width);
            for (const Contestant& c : contestants) {
                const auto found = scores.find({c.method, c.budget});
                const double mean = found == scores.end() ? 0 : mean_of(found->second);
                sums[{c.method, c.budget}] += mean;
                fmt::print("{:>{}.1f}", 100 * mean, heading(c).size() + 2);
            }
            fmt::print("\n");
        }
        fmt::print("{:<{}}", fmt::format("mean of {}", scores_.size()), width);
        for (const Contestant& c : contestants)
            fmt::print("{:>{}.1f}", 100 * sums[{c.method, c.budget}] / double(scores_.size()),
                       heading(c).size() + 2);
        fmt::print("\n");
    }

  private:
    static std::string heading(const Contestant& c) {
        return c.request.method.keeps_all() ? c.method : c.method + " " + c.budget;
    }
    static double mean_of(const std::vector<double>& values) {
        double sum = 0;
        for (double value : values) sum += value;
        return sum / double(values.size());
    }

    std::set<Key> keys_;
    std::map<std::string, std::map<std::pair<std::string, std::string>, std::vector<double>>> scores_;
};

nlohmann::ordered_json to_json(const SampleResult& r, const Sample& sample, bool question_aware) {
    return {{"task", r.task},
            {"sample", sample.id},
            {"prompt", r.prompt},
            {"method", r.method},
            {"budget", r.budget},
            {"question_aware", question_aware},
            {"score", r.score},
            {"answer", r.answer},
            {"answers", sample.answers},
            {"metric", metric_name(sample.metric)},
            {"tokens", r.tokens},
            {"kept_mean", r.kept_mean},
            {"kept_by_layer", r.kept},
            {"answer_tokens", r.answer_tokens},
            {"prefill_seconds", r.prefill_seconds},
            {"compression_seconds", r.compression_seconds},
            {"answer_seconds", r.answer_seconds}};
}

// What results depend on: a folder takes more results of the same alone.
nlohmann::ordered_json manifest_of(const EvalOptions& options, const Model& model,
                                   const Tokenizer& tokenizer) {
    return {{"model", model.parameters().name},
            {"fingerprint", model.fingerprint()},
            {"context_length", model.parameters().context_length},
            {"chat_template", tokenizer.has_chat_template()},
            {"question_aware", options.question_aware}};
}

void write_manifest(const std::string& path, const nlohmann::ordered_json& manifest) {
    std::ofstream file(path + ".part");
    file << manifest.dump(2) << "\n";
    file.close();
    if (!file || std::rename((path + ".part").c_str(), path.c_str()) != 0)
        throw Error("cannot write '" + path + "'");
}

void run(const EvalOptions& options) {
    const std::vector<Contestant> contestants = contestants_of(options);
    std::vector<Sample> samples;
    for (const std::string& path : options.data) {
        const std::vector<Sample> of_file = read_samples(path);
        samples.insert(samples.end(), of_file.begin(), of_file.end());
    }
    if (options.samples > 0) {  // the first of each task
        std::map<std::string, int> taken;
        std::erase_if(samples, [&](const Sample& s) { return ++taken[s.task] > options.samples; });
    }
    const Model model(options.model, options.model_options);
    const Tokenizer tokenizer(options.model);
    Compute compute(options.threads, &interrupted);
    Evaluation evaluation(model, tokenizer, compute, {options.question_aware});
    for (const Sample& sample : samples) evaluation.check(sample);  // before hours of work, not in between

    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    const std::string results_path = options.folder + "/results.jsonl",
                      manifest_path = options.folder + "/manifest.json";
    const nlohmann::ordered_json manifest = manifest_of(options, model, tokenizer);
    Results results;
    if (std::filesystem::exists(results_path)) {
        if (!options.resume)
            throw Error(
                "'" + options.folder + "' holds results already; go on with --resume, or give another folder",
                Error::Kind::usage);
        std::ifstream file(manifest_path);
        const nlohmann::ordered_json before = nlohmann::ordered_json::parse(file, nullptr, false);
        if (before != manifest)
            throw Error(
                "'" + manifest_path + "' is of another model or setting: its results can't be gone on with",
                Error::Kind::usage);
        results.load(results_path);
    }
    write_manifest(manifest_path, manifest);
    std::ofstream output(results_path, std::ios::app | std::ios::binary);
    if (!output) throw Error("cannot write '" + results_path + "'");

    const bool terminal = isatty(STDERR_FILENO) == 1;
    const Stopwatch watch;
    std::size_t done = 0;
    for (const Sample& sample : samples) {
        const std::string prompt = evaluation.prompt_hash(sample);
        std::vector<Contestant> missing;
        for (const Contestant& c : contestants)
            if (!results.has(prompt, c)) missing.push_back(c);
        if (!missing.empty())
            for (const SampleResult& result : evaluation.run(sample, missing)) {
                const nlohmann::ordered_json json = to_json(result, sample, options.question_aware);
                output << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n"
                       << std::flush;
                if (!output) throw Error("cannot write '" + results_path + "'; is the disk full?");
                results.add(json);
            }
        ++done;
        if (terminal)
            fmt::print(stderr, "\r\033[K{} of {} samples, {:.0f} s left{}", done, samples.size(),
                       watch.seconds() / double(done) * double(samples.size() - done),
                       done == samples.size() ? "\r\033[K" : "");
    }
    fmt::print("{} samples of {}, question-{}, {}\n\n", samples.size(), model.parameters().name,
               options.question_aware ? "aware" : "agnostic", results_path);
    results.print(contestants);
}

}  // namespace

void add_eval(CLI::App& app) {
    const auto options = std::make_shared<EvalOptions>();
    CLI::App* command = app.add_subcommand("eval", "Evaluate methods on tasks");
    command->require_subcommand(1);
    CLI::App* own = command->add_subcommand("run", "Tasks of your own, one JSON object a line");
    own->add_option("--data", options->data, "File of samples; several are run one after another")
        ->required()
        ->allow_extra_args(false);
    own->add_option("-m,--model", options->model, "GGUF file (default: the fetched SmolLM2-135M)");
    add_model_options(own, options->model_options);
    own->add_option("--methods", options->methods, "Methods, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    own->add_option("--budgets", options->budgets, "Budgets, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    own->add_flag("--question-aware", options->question_aware, "Let the compression see the question");
    own->add_option("--samples", options->samples, "Of each task, at most")->check(CLI::Range(1, 1 << 30));
    own->add_option("--out", options->folder, "Folder for results.jsonl and manifest.json")->required();
    own->add_flag("--resume", options->resume, "Go on where the folder's results end");
    own->add_option("-t,--threads", options->threads, "Threads")
        ->check(CLI::Range(1, 512))
        ->capture_default_str();
    own->callback([options] { run(*options); });
}

}  // namespace holdfast
