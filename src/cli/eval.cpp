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
#include "base/whole_file.hpp"
#include "cli/commands.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/cache_folder.hpp"
#include "eval/evaluation.hpp"
#include "eval/ruler.hpp"
#include "holdfast/engine.hpp"

namespace holdfast {

namespace {

struct EvalOptions {
    std::string model = default_model_path();
    ModelOptions model_options;
    std::vector<std::string> methods = {"full", "snapkv", "layer-defensive"};
    std::vector<std::string> budgets = {"20%"};
    bool question_aware = false;
    int samples = 0;  // of a task; 0: all
    std::string folder;
    bool resume = false;
    int threads = int(std::max(1u, std::thread::hardware_concurrency()));

    void add(CLI::App* command);
};

void EvalOptions::add(CLI::App* command) {
    command->add_option("-m,--model", model, "GGUF file (default: the fetched SmolLM2-135M)");
    add_model_options(command, model_options);
    command->add_option("--methods", methods, "Methods, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    command->add_option("--budgets", budgets, "Budgets, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    command->add_flag("--question-aware", question_aware, "Let the compression see the question");
    command->add_option("--samples", samples, "Of each task")->check(CLI::Range(1, 1 << 30));
    command->add_option("--out", folder, "Folder for results.jsonl and manifest.json");
    command->add_flag("--resume", resume, "Go on where the folder's results end");
    command->add_option("-t,--threads", threads, "Threads")->check(CLI::Range(1, 512))->capture_default_str();
}

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
        // RULER's average is over all of its tasks, and no other mean may be taken for it.
        const bool ruler =
            scores_.size() == ruler_tasks().size() &&
            std::ranges::all_of(ruler_tasks(), [&](const auto& t) { return scores_.contains(t); });
        fmt::print("{:<{}}", ruler ? "RULER average" : fmt::format("mean of {}", scores_.size()), width);
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

// The model, and everything that stays the same between samples.
struct Bench {
    Model model;
    Tokenizer tokenizer;
    Compute compute;
    Evaluation evaluation;

    explicit Bench(const EvalOptions& options)
        : model(options.model, options.model_options),
          tokenizer(options.model),
          compute(options.threads, &interrupted),
          evaluation(model, tokenizer, compute, {options.question_aware}) {}
};

void evaluate(const EvalOptions& options, Bench& bench, const std::vector<Sample>& samples) {
    const std::vector<Contestant> contestants = contestants_of(options);
    if (options.folder.empty()) throw Error("results need a folder: give it with --out", Error::Kind::usage);
    for (const Sample& sample : samples)
        bench.evaluation.check(sample);  // before hours of work, not in between

    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    const std::string results_path = options.folder + "/results.jsonl",
                      manifest_path = options.folder + "/manifest.json";
    const nlohmann::ordered_json manifest = manifest_of(options, bench.model, bench.tokenizer);
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
    write_whole_file(manifest_path, manifest.dump(2) + "\n");
    std::ofstream output(results_path, std::ios::app | std::ios::binary);
    if (!output) throw Error("cannot write '" + results_path + "'");

    const bool terminal = isatty(STDERR_FILENO) == 1;
    const Stopwatch watch;
    std::size_t done = 0;
    for (const Sample& sample : samples) {
        const std::string prompt = bench.evaluation.prompt_hash(sample);
        std::vector<Contestant> missing;
        for (const Contestant& c : contestants)
            if (!results.has(prompt, c)) missing.push_back(c);
        if (!missing.empty())
            for (const SampleResult& result : bench.evaluation.run(sample, missing)) {
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
    fmt::print("{} samples of {}, question-{}, {}\n\n", samples.size(), bench.model.parameters().name,
               options.question_aware ? "aware" : "agnostic", results_path);
    results.print(contestants);
}

struct OwnOptions : EvalOptions {
    std::vector<std::string> data;
};

void run_own(const OwnOptions& options) {
    contestants_of(options);  // a slip is reported before anything is loaded
    std::vector<Sample> samples;
    for (const std::string& path : options.data) {
        const std::vector<Sample> of_file = read_samples(path);
        samples.insert(samples.end(), of_file.begin(), of_file.end());
    }
    if (options.samples > 0) {  // the first of each task
        std::map<std::string, int> taken;
        std::erase_if(samples, [&](const Sample& s) { return ++taken[s.task] > options.samples; });
    }
    Bench bench(options);
    evaluate(options, bench, samples);
}

struct RulerOptions : EvalOptions {
    RulerSettings ruler;
    std::vector<std::string> tasks = ruler_tasks();
    std::string haystack, words, squad, hotpotqa, dump;
};

// Samples in the form that `eval run` reads.
void write_samples(const std::string& path, const std::vector<Sample>& samples) {
    std::string lines;
    for (const Sample& s : samples)
        lines += nlohmann::ordered_json{{"task", s.task},
                                        {"context", s.context},
                                        {"question", s.question},
                                        {"answer_prefix", s.answer_prefix},
                                        {"answers", s.answers},
                                        {"max_new_tokens", s.most_tokens},
                                        {"metric", metric_name(s.metric)}}
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                 "\n";
    write_whole_file(path, lines);
}

void run_ruler(const RulerOptions& options) {
    contestants_of(options);
    for (const std::string& task : options.tasks)
        if (std::ranges::count(ruler_tasks(), task) == 0)
            throw Error("RULER has no task '" + task +
                            "'; it has: " + fmt::format("{}", fmt::join(ruler_tasks(), ", ")),
                        Error::Kind::usage);
    if (options.folder.empty() && options.dump.empty())
        throw Error("give a folder for results with --out, or a file for samples with --dump",
                    Error::Kind::usage);
    // What the set-up fetches and Debian has, unless something else is given.
    const std::string essays = cache_folder() + "/essays", dictionary = "/usr/share/dict/words";
    RulerMaterial material;
    if (!options.haystack.empty() || std::filesystem::exists(essays))
        material.essay = read_haystack(options.haystack.empty() ? essays : options.haystack);
    if (!options.words.empty() || std::filesystem::exists(dictionary))
        material.words = read_words(options.words.empty() ? dictionary : options.words);
    material.squad = options.squad;
    material.hotpotqa = options.hotpotqa;

    Bench bench(options);
    if (options.ruler.length > bench.model.parameters().context_length)
        throw Error("--length " + std::to_string(options.ruler.length) + " exceeds the " +
                        std::to_string(bench.model.parameters().context_length) +
                        " tokens that the model reads",
                    Error::Kind::usage);
    const RulerGenerator generator(std::move(material), options.ruler, [&](const Sample& sample) {
        return bench.evaluation.prompt_tokens(sample);
    });
    std::vector<Sample> samples;
    for (const std::string& task : options.tasks) {
        if (const std::string missing = generator.missing(task); !missing.empty()) {
            fmt::print(
                stderr, "holdfast: {} is left out: it needs {} ({})\n", task, missing,
                task == "qa_1" ? "--squad FILE"
                : task == "qa_2"
                    ? "--hotpotqa FILE"
                    : "--haystack FILE, --words FILE, or scripts/fetch.sh essays and Debian's wamerican");
            continue;
        }
        for (int i = 0; i < (options.samples > 0 ? options.samples : 10); ++i)
            samples.push_back(generator.generate(task, i));
    }
    if (samples.empty()) throw Error("no task has what it needs", Error::Kind::usage);
    if (!options.dump.empty()) write_samples(options.dump, samples);
    if (!options.folder.empty()) evaluate(options, bench, samples);
}

}  // namespace

void add_eval(CLI::App& app) {
    CLI::App* command = app.add_subcommand("eval", "Evaluate methods on tasks");
    command->require_subcommand(1);

    const auto own = std::make_shared<OwnOptions>();
    CLI::App* run = command->add_subcommand("run", "Tasks of your own, one JSON object a line");
    run->add_option("--data", own->data, "File of samples; several are run one after another")
        ->required()
        ->allow_extra_args(false);
    own->add(run);
    run->callback([own] { run_own(*own); });

    const auto ruler = std::make_shared<RulerOptions>();
    CLI::App* generated =
        command->add_subcommand("ruler", "RULER's tasks, generated for the model's tokenizer");
    ruler->add(generated);
    generated->add_option("--length", ruler->ruler.length, "Tokens of a prompt and its answer")
        ->check(CLI::Range(256, 1 << 24))
        ->capture_default_str();
    generated->add_option("--tasks", ruler->tasks, "Tasks, separated by commas (default: all)")
        ->delimiter(',');
    generated->add_option("--seed", ruler->ruler.seed, "Seed of the samples")->capture_default_str();
    generated->add_option("--haystack", ruler->haystack, "Text, or folder of *.txt, to hide needles in");
    generated->add_option("--words", ruler->words, "List of words, one a line");
    generated->add_option("--squad", ruler->squad, "SQuAD 2.0, JSON as published: for qa_1");
    generated->add_option("--hotpotqa", ruler->hotpotqa, "HotpotQA, JSON as published: for qa_2");
    generated->add_option("--dump", ruler->dump, "File to write the samples to");
    generated->callback([ruler] { run_ruler(*ruler); });
}

}  // namespace holdfast
