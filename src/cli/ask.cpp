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
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "cli/commands.hpp"
#include "holdfast/engine.hpp"
#include "cli/documents.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context_file.hpp"
#include "engine/session.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace holdfast {

namespace {

struct AskOptions {
    std::string model = default_model_path();
    std::vector<std::string> files;
    MethodOptions compression;
    bool question_aware = false;
    int most_tokens = 256;
    float temperature = 0;
    std::uint64_t seed = 0;
    int threads = int(std::max(1u, std::thread::hardware_concurrency()));
    ModelOptions model_options;
    bool json = false;
    std::string questions_file;
    std::vector<std::string> questions;
    std::string context_file;  // instead of documents
};

struct Answer {
    std::string text;
    int tokens = 0;
    double question_seconds = 0;  // reading the question
    double decode_seconds = 0;    // from the first token on
    double tokens_per_second() const { return decode_seconds > 0 ? (tokens - 1) / decode_seconds : 0; }
};

// Everything that stays the same between the questions of one run.
class Asker {
  public:
    // file: a context that was compressed before, or null.
    Asker(const AskOptions& options, const ContextFile* file)
        : options_(options),
          file_(file),
          parsed_(options.compression.parse()),
          document_(file == nullptr ? read_documents(options.files) : ""),
          model_(options.model, options.model_options),
          tokenizer_(options.model),
          compute_(options.threads, &interrupted),
          decoder_(model_, compute_) {
        if (file_ != nullptr) {
            const Stopwatch watch;
            context_ = std::make_unique<Context>(file_->context(model_));
            open_seconds_ = watch.seconds();
        }
        if (!tokenizer_.has_chat_template())
            fmt::print(stderr,
                       "holdfast: the model has no chat template; the document and the question are read as "
                       "plain text\n");
    }

    // first_question: read with the document when the compression is question-aware.
    void read(const std::string& first_question) {
        if (file_ != nullptr) return;
        ReadSettings settings;
        settings.method = parsed_.method;
        settings.budget = parsed_.budget;
        Prompt prompt = tokenizer_.prompt(document_, first_question);
        if (options_.question_aware)
            prompt.context.insert(prompt.context.end(), prompt.question.begin(), prompt.question.end());
        ProgressLine line;
        context_ = std::make_unique<Context>(read_context(model_, compute_, prompt.context, settings,
                                                          [&](const ReadProgress& p) { line.show(p); }));
    }

    // index: of the question in this run; the first one is part of a question-aware context.
    Answer ask(const std::string& question, std::size_t index) {
        Prompt prompt = tokenizer_.prompt("", question);
        std::vector<int> tokens;
        if (!options_.question_aware || index > 0) {
            if (options_.question_aware) tokens = tokenizer_.tokenize("\n", true);
            tokens.insert(tokens.end(), prompt.question.begin(), prompt.question.end());
        }
        tokens.insert(tokens.end(), prompt.ending.begin(), prompt.ending.end());

        Answer answer;
        Session session(decoder_, context_->cache, model_.parameters().context_length,
                        {options_.temperature, options_.seed});
        const Stopwatch reading;
        const std::span<const float> logits = session.read(tokens);
        answer.question_seconds = reading.seconds();
        Utf8Stream stream;
        const auto emit = [&](const std::string& text) {
            answer.text += text;
            if (options_.json) return;
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
        };
        const Stopwatch decoding;
        answer.tokens = session.answer(logits, options_.most_tokens, [&](int token) {
            if (tokenizer_.ends_answer(token)) return false;
            emit(stream.push(tokenizer_.piece(token)));
            return true;
        });
        answer.decode_seconds = decoding.seconds();
        emit(stream.finish());
        if (options_.json)
            print_json(question, answer);
        else
            std::puts("");
        std::fflush(stdout);
        return answer;
    }

    void print_summary(const std::vector<Answer>& answers) const {
        const ReadReport& r = context_->report;
        if (file_ != nullptr)
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
                   format_bytes(r.plan.kv_full), 100.0 * double(r.kv_bytes) / double(r.plan.kv_full));
        if (file_ == nullptr)
            fmt::print(stderr, "memory    {} peak above the weights, {} planned\n",
                       format_bytes(r.peak_bytes), format_bytes(r.plan.peak()));
        int tokens = 0;
        double questions = 0, decode = 0, steps = 0;
        for (const Answer& answer : answers) {
            tokens += answer.tokens;
            questions += answer.question_seconds;
            decode += answer.decode_seconds;
            steps += answer.tokens - 1;
        }
        fmt::print(stderr,
                   "answered  {} tokens in {:.2f} s ({:.1f} tokens/s) after {:.2f} s of reading questions\n",
                   tokens, decode, decode > 0 ? steps / decode : 0.0, questions);
        if (!r.note.empty()) fmt::print(stderr, "note      {}\n", r.note);
    }

  private:
    std::string method() const { return file_ != nullptr ? file_->info().method : parsed_.method.name(); }
    std::string budget() const {
        if (file_ != nullptr) return file_->info().budget;
        return parsed_.method.keeps_all() ? "100%" : options_.compression.budget;
    }
    bool question_aware() const { return file_ == nullptr && options_.question_aware; }
    std::string label() const {
        if (method() == "full") return "full cache";
        return fmt::format("{} at {}, question-{}", method(), budget(),
                           question_aware() ? "aware" : "agnostic");
    }

    void print_json(const std::string& question, const Answer& answer) const {
        const ReadReport& r = context_->report;
        const nlohmann::json object = {
            {"question", question},
            {"answer", answer.text},
            {"model", model_.parameters().name},
            {"method", method()},
            {"budget", budget()},
            {"question_aware", question_aware()},
            {"tokens_read", r.tokens},
            {"kept_per_head", {{"min", r.kept_least}, {"mean", r.kept_mean}, {"max", r.kept_most}}},
            {"sliding_layers", r.sliding_layers},
            {"kv_bytes", r.kv_bytes},
            {"kv_bytes_full", r.plan.kv_full},
            {"peak_bytes", r.peak_bytes},
            {"planned_peak_bytes", file_ == nullptr ? r.plan.peak() : 0},
            {"prefill_seconds", r.prefill_seconds},
            {"compression_seconds", r.compression_seconds},
            {"prefill_tokens_per_second", r.prefill_seconds > 0 ? r.tokens / r.prefill_seconds : 0},
            {"open_seconds", open_seconds_},
            {"question_seconds", answer.question_seconds},
            {"answer_tokens", answer.tokens},
            {"decode_seconds", answer.decode_seconds},
            {"decode_tokens_per_second", answer.tokens_per_second()},
            {"note", r.note},
        };
        // Questions may hold any bytes; what isn't UTF-8 is replaced.
        fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }

    AskOptions options_;
    const ContextFile* file_;
    double open_seconds_ = 0;
    MethodOptions::Parsed parsed_;
    std::string document_;
    Model model_;
    Tokenizer tokenizer_;
    Compute compute_;
    DecoderGraph decoder_;
    std::unique_ptr<Context> context_;
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
void run(AskOptions options, const std::function<bool(const char*)>& given) {
    options.compression.parse();  // a slip is reported before anything is loaded
    if (options.compression.explained()) return;
    std::optional<ContextFile> file;
    // A question may end like a file's name, where it isn't one.
    if (!options.questions.empty() && options.questions.front().ends_with(context_file_ending) &&
        (options.files.empty() || std::filesystem::exists(options.questions.front()))) {
        options.context_file = options.questions.front();
        options.questions.erase(options.questions.begin());
        for (const char* name : {"--file", "--budget", "--method", "--set", "--question-aware", "--context",
                                 "--rope-scaling", "--rope-scale"})
            if (given(name))
                throw Error(std::string(name) + " has no effect on '" + options.context_file +
                                "', which was read and compressed before",
                            Error::Kind::usage);
        file.emplace(options.context_file);
        if (!given("--model")) options.model = file->info().model_path;
        options.model_options = file->info().model_options;
    }
    if (options.files.empty() && !file)
        throw Error("there is no document: give one with -f (--file), or a context file of holdfast compress",
                    Error::Kind::usage);
    std::vector<std::string> questions = all_questions(options);
    const bool reads_stdin =
        std::find(options.files.begin(), options.files.end(), "-") != options.files.end();
    const bool loop = questions.empty() && !reads_stdin && isatty(STDIN_FILENO) == 1;
    if (questions.empty() && !loop)
        throw Error("there is no question: give it as an argument or with --questions, or ask on a terminal",
                    Error::Kind::usage);

    Asker asker(options, file ? &*file : nullptr);
    std::vector<Answer> answers;
    std::string line;
    if (loop && options.question_aware) {  // the question must be known before the document is read
        if (!prompt_line(line)) return;
        questions.push_back(line);
    }
    asker.read(questions.empty() ? "" : questions.front());
    for (std::size_t i = 0; i < questions.size(); ++i) {
        if (questions.size() > 1 && !options.json) fmt::print(stderr, "> {}\n", questions[i]);
        answers.push_back(asker.ask(questions[i], i));
    }
    while (loop && prompt_line(line)) answers.push_back(asker.ask(line, answers.size()));
    asker.print_summary(answers);
}

}  // namespace

void add_ask(CLI::App& app) {
    const auto options = std::make_shared<AskOptions>();
    CLI::App* command = app.add_subcommand(
        "ask", "Answer questions about documents, or about a context that was compressed before");
    command->add_option("-m,--model", options->model, "GGUF file (default: the fetched SmolLM2-135M)");
    command
        ->add_option("-f,--file", options->files, "Document; several are read one after another; - is stdin")
        ->allow_extra_args(false);
    options->compression.add(command);
    command->add_flag("--question-aware", options->question_aware,
                      "Let the compression see the first question");
    command->add_option("-n,--tokens", options->most_tokens, "Longest answer in tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--temp", options->temperature, "Temperature; 0 takes the most likely token")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    command->add_option("--seed", options->seed, "Seed of the sampling")->capture_default_str();
    command->add_option("-t,--threads", options->threads, "Threads")
        ->check(CLI::Range(1, 512))
        ->capture_default_str();
    add_model_options(command, options->model_options);
    command->add_flag("--json", options->json, "Print one JSON object a question");
    command->add_option("--questions", options->questions_file, "File with one question a line");
    command->add_option(
        "question", options->questions,
        "Questions; before them a context file (.hfkv) of holdfast compress instead of documents");
    command->callback([options, command] {
        if (options->compression.method == "full" && options->question_aware)
            throw Error("--method full keeps everything: --question-aware has no effect with it",
                        Error::Kind::usage);
        if (options->temperature == 0 && command->count("--seed") > 0)
            throw Error("--seed has no effect without --temp", Error::Kind::usage);
        run(*options, [command](const char* name) { return command->count(name) > 0; });
    });
}

}  // namespace holdfast
