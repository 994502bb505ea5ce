#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.hpp"
#include "holdfast/error.hpp"
#include "cli/commands.hpp"
#include "holdfast/holdfast.hpp"
#include "cli/documents.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context_file.hpp"

namespace holdfast {

namespace {

struct AskOptions {
    ModelChoice model;
    std::vector<std::string> files;
    MethodOptions compression;
    bool question_aware = false;
    int most_tokens = 256;
    Sampling sampling;
    bool json = false;
    std::string questions_file;
    std::vector<std::string> questions;
    std::string context_file;  // instead of documents
};

// Everything that stays the same between the questions of one run.
class Asker {
  public:
    explicit Asker(const AskOptions& options) : options_(options), model_(options.model.open()) {
        if (!model_.has_chat_template())
            fmt::print(stderr,
                       "holdfast: the model has no chat template; the document and the question are read as "
                       "plain text\n");
    }

    // first_question: read with the document when the compression is question-aware.
    void read(const std::string& document, const std::string& first_question) {
        const MethodOptions::Parsed parsed = options_.compression.parse();
        ProgressLine line;
        CompressOptions how;
        how.progress = [&](const ReadProgress& progress) {
            line.show(progress);
            return true;
        };
        if (options_.question_aware) how.question = first_question;
        context_.emplace(model_.compress(document, parsed.method, parsed.budget, how));
    }

    void open() {
        const Stopwatch watch;
        context_.emplace(model_.load(options_.context_file));
        open_seconds_ = watch.seconds();
    }

    Answer ask(const std::string& question) {
        SessionOptions how;
        how.sampling = options_.sampling;
        Answer answer = options_.json
                            ? context_->session(how).ask(question, options_.most_tokens)
                            : context_->session(how).ask(question, options_.most_tokens, print_text);
        if (options_.json)
            print_json(question, answer);
        else
            std::puts("");
        std::fflush(stdout);
        return answer;
    }

    void print_summary(const std::vector<Answer>& answers) const {
        const ReadReport& r = context_->report();
        if (from_file())
            fmt::print(stderr, "\nopened    {}: {} tokens, {}, in {:.3f} s\n", options_.context_file,
                       r.tokens, label(), open_seconds_);
        else
            fmt::print(
                stderr, "\nread      {} tokens in {:.2f} s ({:.0f} tokens/s), compressed in {:.2f} s, {}\n",
                r.tokens, r.prefill_seconds, r.tokens / r.prefill_seconds, r.compression_seconds, label());
        fmt::print(stderr, "kept      {} / {:.1f} / {} tokens per head (least / mean / most){}\n",
                   r.kept_least, r.kept_mean, r.kept_most,
                   r.sliding_layers == 0
                       ? ""
                       : fmt::format("; {} sliding layers keep their windows", r.sliding_layers));
        fmt::print(stderr, "KV cache  {} kept of {} full ({:.1f}%)\n", format_bytes(r.kv_bytes),
                   format_bytes(r.kv_bytes_full), 100.0 * double(r.kv_bytes) / double(r.kv_bytes_full));
        if (!from_file())
            fmt::print(stderr, "memory    {} peak above the weights, {} planned\n",
                       format_bytes(r.peak_bytes), format_bytes(r.planned_peak_bytes));
        int tokens = 0;
        double questions = 0, decode = 0, steps = 0;
        for (const Answer& answer : answers) {
            tokens += answer.tokens;
            questions += answer.question_seconds;
            decode += answer.answer_seconds;
            steps += answer.tokens - 1;
        }
        fmt::print(stderr,
                   "answered  {} tokens in {:.2f} s ({:.1f} tokens/s) after {:.2f} s of reading questions\n",
                   tokens, decode, decode > 0 ? steps / decode : 0.0, questions);
        if (!r.note.empty()) fmt::print(stderr, "note      {}\n", r.note);
    }

  private:
    bool from_file() const { return !options_.context_file.empty(); }
    const ContextInfo& info() const { return context_->info(); }
    std::string label() const {
        if (info().method == "full") return "full cache";
        return fmt::format("{} at {}, question-{}", info().method, info().budget,
                           info().question.empty() ? "agnostic" : "aware");
    }
    static double tokens_per_second(const Answer& answer) {
        return answer.answer_seconds > 0 ? (answer.tokens - 1) / answer.answer_seconds : 0;
    }

    void print_json(const std::string& question, const Answer& answer) const {
        const ReadReport& r = context_->report();
        const nlohmann::json object = {
            {"question", question},
            {"answer", answer.text},
            {"model", model_.name()},
            {"method", info().method},
            {"budget", info().budget},
            {"question_aware", !info().question.empty()},
            {"tokens_read", r.tokens},
            {"kept_per_head", {{"min", r.kept_least}, {"mean", r.kept_mean}, {"max", r.kept_most}}},
            {"sliding_layers", r.sliding_layers},
            {"kv_bytes", r.kv_bytes},
            {"kv_bytes_full", r.kv_bytes_full},
            {"peak_bytes", r.peak_bytes},
            {"planned_peak_bytes", r.planned_peak_bytes},
            {"prefill_seconds", r.prefill_seconds},
            {"compression_seconds", r.compression_seconds},
            {"prefill_tokens_per_second", r.prefill_seconds > 0 ? r.tokens / r.prefill_seconds : 0},
            {"open_seconds", open_seconds_},
            {"question_seconds", answer.question_seconds},
            {"answer_tokens", answer.tokens},
            {"decode_seconds", answer.answer_seconds},
            {"decode_tokens_per_second", tokens_per_second(answer)},
            {"note", r.note},
        };
        // Questions may hold any bytes; what isn't UTF-8 is replaced.
        fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }

    const AskOptions& options_;
    Model model_;
    std::optional<Context> context_;
    double open_seconds_ = 0;
};

std::vector<std::string> all_questions(const AskOptions& options) {
    std::vector<std::string> questions = options.questions;
    if (!options.questions_file.empty()) {
        std::ifstream file(options.questions_file);
        if (!file) throw Error("cannot open the questions '" + options.questions_file + "'");
        for (std::string line; std::getline(file, line);)
            if (line.find_first_not_of(" \t\r") != std::string::npos) questions.push_back(line);
        if (questions.empty()) throw Error("'" + options.questions_file + "' holds no question");
    }
    return questions;
}

// One line from the terminal; false at its end.
bool prompt_line(std::string& line) {
    fmt::print(stderr, "> ");
    while (std::getline(std::cin, line))
        if (line.find_first_not_of(" \t\r") != std::string::npos) return true;
    return false;
}

// given(name): whether the option was.
void run(AskOptions& options, const std::function<bool(const char*)>& given) {
    options.compression.parse();  // a slip is reported before anything is loaded
    if (options.compression.explained()) return;
    // A question may end like a file's name, where it isn't one.
    if (!options.questions.empty() && options.questions.front().ends_with(context_file_ending) &&
        (options.files.empty() || std::filesystem::exists(options.questions.front()))) {
        options.context_file = options.questions.front();
        options.questions.erase(options.questions.begin());
        for (const char* name : {"--file", "--budget", "--method", "--set", "--question-aware"})
            if (given(name))
                throw Error(std::string(name) + " has no effect on '" + options.context_file +
                                "', which was read and compressed before",
                            Error::Kind::usage);
        options.model.choose_for(options.context_file);
    }
    if (options.files.empty() && options.context_file.empty())
        throw Error("there is no document: give one with -f (--file), or a context file of holdfast compress",
                    Error::Kind::usage);
    std::vector<std::string> questions = all_questions(options);
    const bool reads_stdin =
        std::find(options.files.begin(), options.files.end(), "-") != options.files.end();
    const bool loop = questions.empty() && !reads_stdin && isatty(STDIN_FILENO) == 1;
    if (questions.empty() && !loop)
        throw Error("there is no question: give it as an argument or with --questions, or ask on a terminal",
                    Error::Kind::usage);

    const std::string document = options.context_file.empty() ? read_documents(options.files) : "";
    Asker asker(options);
    std::vector<Answer> answers;
    std::string line;
    if (loop && options.question_aware) {  // the question must be known before the document is read
        if (!prompt_line(line)) return;
        questions.push_back(line);
    }
    if (options.context_file.empty())
        asker.read(document, questions.empty() ? "" : questions.front());
    else
        asker.open();
    for (const std::string& question : questions) {
        if (questions.size() > 1 && !options.json) fmt::print(stderr, "> {}\n", question);
        answers.push_back(asker.ask(question));
    }
    while (loop && prompt_line(line)) answers.push_back(asker.ask(line));
    asker.print_summary(answers);
}

}  // namespace

void add_ask(CLI::App& app) {
    const auto options = std::make_shared<AskOptions>();
    CLI::App* command = app.add_subcommand(
        "ask", "Answer questions about documents, or about a context that was compressed before");
    options->model.add(command);
    command
        ->add_option("-f,--file", options->files, "Document; several are read one after another; - is stdin")
        ->allow_extra_args(false);
    options->compression.add(command);
    command->add_flag("--question-aware", options->question_aware,
                      "Let the compression see the first question");
    command->add_option("-n,--tokens", options->most_tokens, "Longest answer in tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    add_sampling_options(command, options->sampling);
    command->add_flag("--json", options->json, "Print one JSON object a question");
    command->add_option("--questions", options->questions_file, "File with one question a line");
    command->add_option(
        "question", options->questions,
        "Questions; before them a context file (.hfkv) of holdfast compress instead of documents");
    command->callback([options, command] {
        if (options->compression.method == "full" && options->question_aware)
            throw Error("--method full keeps everything: --question-aware has no effect with it",
                        Error::Kind::usage);
        if (options->sampling.temperature == 0 && command->count("--seed") > 0)
            throw Error("--seed has no effect without --temp", Error::Kind::usage);
        run(*options, [command](const char* name) { return command->count(name) > 0; });
    });
}

}  // namespace holdfast
