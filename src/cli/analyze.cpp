#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "analyze/analysis_report.hpp"
#include "holdfast/error.hpp"
#include "base/whole_file.hpp"
#include "cli/commands.hpp"
#include "cli/documents.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context.hpp"
#include "holdfast/holdfast.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {

namespace {

struct AnalyzeOptions {
    std::string model;
    ModelOptions model_options;
    std::vector<std::string> files;
    std::string question;
    RequestOptions requests;
    int most_steps = 200;
    double threshold = 0.5;
    std::string folder;
    int threads = 0;

    void add(CLI::App* command);
};

void AnalyzeOptions::add(CLI::App* command) {
    add_model_path(command, model);
    add_model_options(command, model_options);
    command->add_option("-f,--file", files, "Document; several are read one after another; - is stdin")
        ->allow_extra_args(false)
        ->required();
    requests.add(command);
    command->add_option("--out", folder, "Folder for the page and the JSON file")->required();
    add_threads(command, threads);
}

void add_answer(CLI::App* command, AnalyzeOptions& options) {
    command->add_option("-q,--question", options.question, "What is asked about the document")->required();
    command->add_option("-n,--decode-steps", options.most_steps, "Longest answer in tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
}

// A document that was read once, with the full cache and as every method left it.
class Analyst {
  public:
    explicit Analyst(const AnalyzeOptions& options)
        : options_(options),
          requests_(options.requests.parse()),
          document_(read_documents(options.files)),
          model_(options.model, options.model_options),
          tokenizer_(options.model),
          compute_(options.threads, was_interrupted),
          decoder_(model_, compute_) {
        std::erase_if(requests_, [](const CompressionRequest& r) { return r.method.keeps_all(); });
        if (requests_.empty())
            throw Error("there is nothing to compare with the full cache: give --methods that compress",
                        Error::Kind::usage);
        std::error_code error;
        std::filesystem::create_directories(options.folder, error);
        if (!std::filesystem::is_directory(options.folder) || access(options.folder.c_str(), W_OK) != 0)
            throw Error("cannot write into the folder '" + options.folder + "'");

        const HyperParameters& p = model_.parameters();
        const Prompt prompt = tokenizer_.prompt(document_, options.question);
        question_ = prompt.question;
        question_.insert(question_.end(), prompt.ending.begin(), prompt.ending.end());
        subject_.model = p.name;
        subject_.question = options.question;
        for (int token : prompt.context) subject_.pieces.push_back(tokenizer_.piece(token));
        subject_.layers = evicting_layers(p);
        if (subject_.layers.empty())
            throw Error(
                "all layers of this model slide, so nothing is ever evicted: there is nothing to analyze");
        subject_.heads = p.heads;
        subject_.kv_heads = p.kv_heads;
        std::vector<CompressionRequest> all = {{Method::full(), Budget::everything()}};
        for (const CompressionRequest& request : requests_) {
            all.push_back(request);
            subject_.methods.push_back(request.method.name() + " " + request.budget.name());
        }
        ProgressLine line;
        contexts_ = read_contexts(model_, compute_, prompt.context, all,
                                  [&](const ReadProgress& progress) { line.show(progress); });
        for (std::size_t i = 1; i < contexts_.size(); ++i) kept_.push_back(&contexts_[i].cache);
    }

    void perturbation() {
        const PerturbationAnalysis analysis = analyze_perturbation(model_, compute_, decoder_, setting());
        take_answer(analysis.answer);
        write("perturbation", perturbation_report(subject_, analysis), perturbation_json(subject_, analysis));
        fmt::print("{:<{}}  distance  relative  hidden states\n", "method", width());
        for (std::size_t m = 0; m < subject_.methods.size(); ++m)
            fmt::print("{:<{}}  {:8.2f}  {:7.1f}%  {:12.1f}%\n", subject_.methods[m], width(),
                       analysis.kept[m].mean(&HeadPerturbation::distance),
                       100 * analysis.kept[m].mean(&HeadPerturbation::relative),
                       100 * analysis.kept[m].hidden_relative.back());
    }

    void fragility() {
        const FragilityAnalysis analysis =
            analyze_fragility(model_, compute_, decoder_, setting(), options_.threshold);
        take_answer(analysis.answer);
        write("fragility", fragility_report(subject_, analysis, options_.threshold),
              fragility_json(subject_, analysis, options_.threshold));
        fmt::print("{:<{}}  retained  heads' least  least  collapses\n", "method", width());
        for (std::size_t m = 0; m < subject_.methods.size(); ++m) {
            const Fragility& kept = analysis.kept[m];
            fmt::print("{:<{}}  {:8.3f}  {:12.3f}  {:5.3f}  {:9}\n", subject_.methods[m], width(), kept.mean,
                       kept.mean_least, kept.worst_head.retained, kept.collapses);
        }
    }

    void tokens() {
        const TokenCounts counts = count_kept(subject_, kept_);
        write("tokens", tokens_report(subject_, counts), tokens_json(subject_, counts));
        if (isatty(STDOUT_FILENO) != 1) return;
        // From no background over five blues, the last kept by all heads.
        constexpr int blues[] = {0, 17, 18, 19, 20, 21};
        for (std::size_t m = 0; m < subject_.methods.size(); ++m) {
            fmt::print("\n{}\n\n", subject_.methods[m]);
            for (const ColouredText::Piece& piece : coloured_pieces(subject_, counts[m])) {
                const int level = int(std::lround(piece.share * 5));
                fmt::print("{}{}\033[0m",
                           level == 0 ? "" : fmt::format("\033[38;5;255;48;5;{}m", blues[level]), piece.text);
            }
            fmt::print("\n");
        }
    }

  private:
    AnswerSetting setting() {
        return {contexts_[0].cache,
                kept_,
                question_,
                options_.most_steps,
                [this](int token) { return tokenizer_.ends_answer(token); },
                [this, terminal = isatty(STDERR_FILENO) == 1](int steps) {
                    if (terminal)
                        fmt::print(stderr, "\r\033[K{} of at most {} steps\r", steps, options_.most_steps);
                }};
    }
    void take_answer(const std::vector<int>& answer) {
        for (int token : answer) subject_.answer.push_back(tokenizer_.piece(token));
        if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r\033[K");
    }
    std::size_t width() const {
        std::size_t most = 6;
        for (const std::string& name : subject_.methods) most = std::max(most, name.size());
        return most;
    }
    void write(const std::string& name, const Document& document, const nlohmann::ordered_json& json) const {
        const std::string path = options_.folder + "/" + name;
        write_whole_file(path + ".html", document.html());
        write_whole_file(path + ".json",
                         json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
        fmt::print("{0}.html\n{0}.json\n\n", path);
    }

    const AnalyzeOptions& options_;
    std::vector<CompressionRequest> requests_;
    std::string document_;
    GgufModel model_;
    Tokenizer tokenizer_;
    Compute compute_;
    DecoderGraph decoder_;
    AnalysisSubject subject_;
    std::vector<int> question_;
    std::vector<ReadContext> contexts_;  // the full one, and what each request left
    std::vector<const RaggedCache*> kept_;
};

}  // namespace

void add_analyze(CLI::App& app) {
    CLI::App* command = app.add_subcommand("analyze", "Show why methods keep or lose what an answer needs");
    command->require_subcommand(1);

    const auto add = [&](const char* name, const char* description, std::vector<std::string> methods,
                         void (Analyst::*work)()) {
        const auto options = std::make_shared<AnalyzeOptions>();
        options->requests.methods = std::move(methods);
        CLI::App* sub = command->add_subcommand(name, description);
        options->add(sub);
        sub->callback([options, work] { (Analyst(*options).*work)(); });
        return std::pair(sub, options);
    };
    const auto [perturbation, perturbation_options] = add(
        "perturbation", "How far heads' outputs and hidden states move",
        {"snapkv", "critical-snapkv", "adakv", "critical-adakv", "layer-defensive"}, &Analyst::perturbation);
    add_answer(perturbation, *perturbation_options);
    const auto [fragility, fragility_options] =
        add("fragility", "How much of what the full model looks at is kept, step by step",
            {"snapkv+mean+joint", "snapkv+worst-case+joint", "snapkv+defensive+joint",
             "snapkv+mean+critical+joint", "snapkv+worst-case+critical+joint", "defensive"},
            &Analyst::fragility);
    add_answer(fragility, *fragility_options);
    fragility
        ->add_option("--threshold", fragility_options->threshold,
                     "A collapse is a step below this share of the head's mean")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    add("tokens", "The document, coloured by how many heads keep each token", {"layer-defensive"},
        &Analyst::tokens);
}

}  // namespace holdfast
