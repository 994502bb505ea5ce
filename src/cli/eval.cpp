#include <fmt/format.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.hpp"
#include "holdfast/error.hpp"
#include "base/hash.hpp"
#include "base/whole_file.hpp"
#include "cli/commands.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/cache_folder.hpp"
#include "eval/evaluation.hpp"
#include "eval/longbench.hpp"
#include "eval/ruler.hpp"
#include "eval/summary.hpp"
#include "holdfast/holdfast.hpp"
#include "kernels/simd.hpp"

namespace holdfast {

namespace {

struct EvalOptions {
    std::string model;
    ModelOptions model_options;
    RequestOptions requests = {{"full", "snapkv", "layer-defensive"}};
    bool question_aware = false;
    int samples = 0;  // of a task; 0: all
    std::string folder;
    bool resume = false;
    int threads = 0;

    void add(CLI::App* command);
};

void EvalOptions::add(CLI::App* command) {
    add_model_path(command, model);
    add_model_options(command, model_options);
    requests.add(command);
    command->add_flag("--question-aware", question_aware, "Let the compression see the question");
    command->add_option("--samples", samples, "Of each task")->check(CLI::Range(1, 1 << 30));
    command->add_option("--out", folder, "Folder for results.jsonl and manifest.json");
    command->add_flag("--resume", resume, "Go on where the folder's results end");
    add_threads(command, threads);
}

void print_scores(const Summary& summary) {
    std::size_t width = 14;
    for (const std::string& task : summary.tasks()) width = std::max(width, task.size() + 2);
    const auto row = [&](const std::string& name, const auto& cell) {
        fmt::print("{:<{}}", name, width);
        for (const Column& c : summary.columns()) fmt::print("{:>{}}", cell(c), c.name().size() + 2);
        fmt::print("\n");
    };
    row("score, 0-100", [](const Column& c) { return c.name(); });
    for (const std::string& task : summary.tasks())
        row(task, [&](const Column& c) {
            const std::optional<double> mean = summary.mean(task, c);
            return mean ? fmt::format("{:.1f}", *mean) : std::string("-");
        });
    row(summary.mean_name(), [&](const Column& c) { return fmt::format("{:.1f}", summary.mean(c)); });
}

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "unknown";
}

// "settings" are what results depend on: a folder takes more results of the same alone.
nlohmann::ordered_json manifest_of(const EvalOptions& options, const GgufModel& model,
                                   const Tokenizer& tokenizer, const nlohmann::ordered_json& task_settings) {
    const HyperParameters& p = model.parameters();
    return {{"settings",
             {{"model", p.name},
              {"fingerprint", model.fingerprint()},
              {"context_length", p.context_length},
              {"rope_scaling", options.model_options.rope_scaling},
              {"rope_scale", options.model_options.rope_scale},
              {"chat_template", tokenizer.has_chat_template()},
              {"question_aware", options.question_aware},
              {"tasks", task_settings}}},
            {"run",
             {{"methods", options.requests.methods},
              {"budgets", options.requests.budgets},
              {"samples", options.samples}}},
            {"layers", p.layers},
            {"kv_heads", p.kv_heads},
            {"version", version()},
            {"machine",
             {{"processor", processor_name()},
              {"kernels", current_simd_target()},
              {"threads", options.threads}}}};
}

// The model, and everything that stays the same between samples.
struct Bench {
    GgufModel model;
    Tokenizer tokenizer;
    Compute compute;
    Evaluation evaluation;

    explicit Bench(const EvalOptions& options)
        : model(options.model, options.model_options),
          tokenizer(options.model),
          compute(options.threads, was_interrupted),
          evaluation(model, tokenizer, compute, {options.question_aware}) {}
};

// Running means of the columns that fit a line.
std::string running_means(const Summary& summary) {
    std::string line;
    for (const Column& c : summary.columns()) {
        const std::string next = fmt::format("  {} {:.1f}", c.name(), summary.mean(c));
        if (line.size() + next.size() > 100) break;
        line += next;
    }
    return line;
}

// Keeps other processes from writing into a folder.
class FolderLock {
  public:
    explicit FolderLock(const std::string& folder) {
        if (folder.empty()) throw Error("results need a folder: give it with --out", Error::Kind::usage);
        std::error_code error;
        std::filesystem::create_directories(folder, error);
        descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (descriptor_ < 0) throw Error("cannot make the folder '" + folder + "': " + std::strerror(errno));
        if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
        close(descriptor_);
        throw Error("another process is writing results into '" + folder + "'");
    }
    ~FolderLock() { close(descriptor_); }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

  private:
    int descriptor_;
};

// The folder's results so far, after its manifest was compared with this run's.
ResultFile open_results(const EvalOptions& options, const nlohmann::ordered_json& manifest) {
    const std::string results_path = options.folder + "/results.jsonl",
                      manifest_path = options.folder + "/manifest.json";
    ResultFile before;
    if (std::filesystem::exists(results_path)) {
        if (!options.resume)
            throw Error(
                "'" + options.folder + "' holds results already; go on with --resume, or give another folder",
                Error::Kind::usage);
        std::ifstream file(manifest_path);
        const nlohmann::ordered_json old = nlohmann::ordered_json::parse(file, nullptr, false);
        if (!old.is_object() || old.value("settings", nlohmann::ordered_json()) != manifest["settings"])
            throw Error(
                "'" + manifest_path + "' is of another model or setting: its results can't be gone on with",
                Error::Kind::usage);
        before = read_results(results_path);
        std::filesystem::resize_file(results_path, before.whole);
    }
    write_whole_file(manifest_path, manifest.dump(2) + "\n");
    return before;
}

void evaluate(const EvalOptions& options, Bench& bench, const std::vector<Sample>& samples,
              const nlohmann::ordered_json& task_settings) {
    const std::vector<CompressionRequest> requests = options.requests.parse();
    std::vector<std::string> prompts;
    for (const Sample& sample : samples)
        prompts.push_back(bench.evaluation.check(sample));  // before hours of work, not in between

    const FolderLock lock(options.folder);
    std::vector<SampleResult> results =
        open_results(options, manifest_of(options, bench.model, bench.tokenizer, task_settings)).results;
    std::set<std::tuple<std::string, std::string, std::string, std::string>> done;
    for (const SampleResult& r : results) done.insert({r.sample, r.prompt, r.method, r.budget});
    const std::string path = options.folder + "/results.jsonl";
    std::ofstream output(path, std::ios::app | std::ios::binary);
    if (!output) throw Error("cannot write '" + path + "'");

    const bool terminal = isatty(STDERR_FILENO) == 1;
    const Stopwatch watch;
    std::size_t seen = 0, ran = 0;
    for (const Sample& sample : samples) {
        const std::string name = sample.name(), &prompt = prompts[seen];
        std::vector<CompressionRequest> missing;
        for (const CompressionRequest& r : requests)
            if (!done.contains({name, prompt, r.method.name(), r.budget.name()})) missing.push_back(r);
        ++seen;
        if (missing.empty()) continue;
        ProgressLine line;
        bench.evaluation.run(
            sample, missing,
            [&](SampleResult result) {
                output << result_line(result) << std::flush;
                if (!output) throw Error("cannot write '" + path + "'; is the disk full?");
                results.push_back(std::move(result));
            },
            [&](const ReadProgress& progress) { line.show(progress); });
        line.clear();  // before the samples' own line takes its place
        ++ran;
        if (terminal)
            fmt::print(stderr, "\r\033[K{} of {} samples, {:.0f} s left{}", seen, samples.size(),
                       watch.seconds() / double(ran) * double(samples.size() - seen),
                       seen == samples.size() ? "\r\033[K" : running_means(Summary(results)));
    }
    fmt::print("{} samples of {}, question-{}, {}\n\n", samples.size(), bench.model.parameters().name,
               options.question_aware ? "aware" : "agnostic", path);
    print_scores(Summary(results));
}

void require_output(const EvalOptions& options, const std::string& dump) {
    if (options.folder.empty() && dump.empty())
        throw Error("give a folder for results with --out, or a file for samples with --dump",
                    Error::Kind::usage);
}

struct OwnOptions : EvalOptions {
    std::vector<std::string> data;
};

void run_own(const OwnOptions& options) {
    options.requests.parse();  // a slip is reported before anything is loaded
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
    evaluate(options, bench, samples, nullptr);
}

void check_tasks(const std::vector<std::string>& tasks, const std::vector<std::string>& known,
                 const char* of) {
    for (const std::string& task : tasks)
        if (std::ranges::count(known, task) == 0)
            throw Error(fmt::format("{} has no task '{}'; it has: {}", of, task, fmt::join(known, ", ")),
                        Error::Kind::usage);
}

struct LongBenchOptions : EvalOptions {
    std::string data, dump;
    std::vector<std::string> tasks = longbench_datasets();
};

void run_longbench(const LongBenchOptions& options) {
    options.requests.parse();
    check_tasks(options.tasks, longbench_datasets(), "LongBench");
    require_output(options, options.dump);
    std::vector<Sample> samples;
    for (const std::string& task : options.tasks) {
        if (!std::filesystem::exists(options.data + "/" + task + ".jsonl")) {
            fmt::print(stderr, "holdfast: {} is left out: there is no {}/{}.jsonl\n", task, options.data,
                       task);
            continue;
        }
        const std::vector<Sample> of_task = read_longbench(options.data, task, options.samples);
        samples.insert(samples.end(), of_task.begin(), of_task.end());
    }
    if (samples.empty())
        throw Error("'" + options.data + "' has no file of LongBench, such as narrativeqa.jsonl");
    if (!options.dump.empty()) write_samples(options.dump, samples);
    if (options.folder.empty()) return;
    Bench bench(options);
    evaluate(options, bench, samples, "longbench");
}

struct RulerOptions : EvalOptions {
    RulerSettings ruler;
    std::vector<std::string> tasks = ruler_tasks();
    std::string haystack, words, squad, hotpotqa, dump;
};

void run_ruler(const RulerOptions& options) {
    options.requests.parse();
    check_tasks(options.tasks, ruler_tasks(), "RULER");
    require_output(options, options.dump);
    // What the set-up fetches and Debian has, unless something else is given.
    const std::string essays = cache_folder() + "/essays", dictionary = "/usr/share/dict/words";
    RulerMaterial material;
    if (!options.haystack.empty() || std::filesystem::exists(essays))
        material.essay = read_haystack(options.haystack.empty() ? essays : options.haystack);
    if (!options.words.empty() || std::filesystem::exists(dictionary))
        material.words = read_words(options.words.empty() ? dictionary : options.words);
    material.squad = options.squad;
    material.hotpotqa = options.hotpotqa;

    Hash hash;
    hash.add(material.essay.data(), material.essay.size());
    for (const std::string& word : material.words) hash.add(word.c_str(), word.size() + 1);
    for (const std::string* path : {&material.squad, &material.hotpotqa}) {
        std::ifstream file(*path, std::ios::binary);  // one that isn't there is an error below
        const std::string content(std::istreambuf_iterator<char>(file), {});
        hash.add(content.data(), content.size());
    }
    const nlohmann::ordered_json settings = {
        {"ruler",
         {{"length", options.ruler.length}, {"seed", options.ruler.seed}, {"material", hash.hex()}}}};

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
    if (!options.folder.empty()) evaluate(options, bench, samples, settings);
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

    const auto longbench = std::make_shared<LongBenchOptions>();
    CLI::App* published = command->add_subcommand("longbench", "LongBench's tasks, from its published files");
    longbench->add(published);
    published->add_option("--data", longbench->data, "Folder of narrativeqa.jsonl and so on")->required();
    published->add_option("--tasks", longbench->tasks, "Datasets, separated by commas (default: all)")
        ->delimiter(',');
    published->add_option("--dump", longbench->dump, "File to write the samples to");
    published->callback([longbench] { run_longbench(*longbench); });

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
