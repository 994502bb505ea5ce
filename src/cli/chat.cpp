#include <fmt/format.h>

#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>

#include "holdfast/holdfast.hpp"
#include "cli/commands.hpp"
#include "cli/line_editor.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context_file.hpp"

namespace holdfast {

namespace {

struct ChatOptions {
    std::string context_file;
    ModelChoice model;
    MethodOptions compression;
    int most_tokens = 512;
    Sampling sampling;
};

constexpr const char* help_text =
    "/budget [BUDGET]  the budget of the whole conversation: shown, or set (2048 tokens a head, or 20%; 100% "
    "lifts it)\n"
    "/save FILE.hfkv   keep the conversation in a file, to go on or to ask it later\n"
    "/stats            what is held\n"
    "/clear            back to the beginning, as if nothing had been asked\n"
    "/exit             leave (Ctrl-D, too)\n"
    "Anything else is asked; Ctrl-C stops an answer.\n";

// Ctrl-C stops what runs, not the chat; SIGTERM ends it.
bool stopped_by_user(const Error& error) {
    if (error.kind != Error::Kind::interrupted || interrupt_signal != SIGINT) return false;
    watch_interrupts();
    return true;
}

class Chat {
  public:
    Chat(const ChatOptions& options, Method method, std::optional<Budget> budget)
        : options_(options),
          method_(std::move(method)),
          budget_(budget),
          model_(options.model.open()),
          context_(options.context_file.empty() ? model_.compress("") : model_.load(options.context_file)) {
        clear();
    }

    void greet() const {
        if (options_.context_file.empty())
            fmt::print(stderr, "{}; /help lists commands\n", model_.name());
        else
            fmt::print(stderr, "{}: {} tokens, {} at {}; {}; /help lists commands\n", options_.context_file,
                       context_.tokens(), context_.info().method, context_.info().budget, model_.name());
    }

    void ask(const std::string& question) {
        try {
            last_ = session_->ask(question, options_.most_tokens, print_text);
            ++turns_;
        } catch (const Error& error) {
            if (!stopped_by_user(error)) throw;
            fmt::print(stderr, " (stopped)");
        }
        std::puts("");
        std::fflush(stdout);
    }

    // Whether to go on. line: begins with "/".
    bool command(const std::string& line) {
        const std::size_t space = line.find_first_of(" \t");
        const std::string name = line.substr(0, space);
        const std::size_t begin = line.find_first_not_of(" \t", space);
        std::string argument = begin == std::string::npos ? "" : line.substr(begin);
        argument.erase(argument.find_last_not_of(" \t") + 1);
        if (name == "/exit") return false;
        if (name == "/help")
            fmt::print(stderr, "{}", help_text);
        else if (name == "/clear")
            clear();
        else if (name == "/stats")
            print_stats();
        else if (name == "/budget")
            set_budget(argument);
        else if (name == "/save")
            save(argument);
        else
            throw Error("there is no command '" + name +
                            "'; /help lists them, and a question that begins with / takes a space before it",
                        Error::Kind::usage);
        return true;
    }

  private:
    void clear() {
        SessionOptions how;
        how.sampling = options_.sampling;
        Session fresh = context_.session(how);
        if (budget_) fresh.limit(method_, *budget_);
        session_.emplace(std::move(fresh));
        turns_ = 0;
    }

    void set_budget(const std::string& text) {
        if (!text.empty()) {
            const Budget budget = Budget::parse(text);
            session_->limit(method_, budget);
            budget_ = budget;
            if (!session_->note().empty()) fmt::print(stderr, "note: {}\n", session_->note());
        }
        fmt::print(stderr, "budget    {}; {:.1f} tokens a head are held\n", budget_name(),
                   session_->kept_mean());
    }

    void save(const std::string& path) {
        check_context_path(path);
        session_->context().save(path);
        fmt::print(stderr, "{}: {} tokens, {}\n", path, session_->tokens(), format_bytes(session_->bytes()));
    }

    std::string budget_name() const {
        return budget_ && session_limited() ? fmt::format("{} by {}", budget_->name(), method_.name())
                                            : "none: all that is said is kept";
    }
    bool session_limited() const { return !budget_->fraction || budget_->value < 1; }

    void print_stats() const {
        fmt::print(stderr, "tokens    {} of {} that the model reads: {} of the context, {} of {} turns\n",
                   session_->tokens(), model_.context_length(), context_.tokens(),
                   session_->tokens() - context_.tokens(), turns_);
        fmt::print(stderr, "held      {:.1f} tokens a head, {}\n", session_->kept_mean(),
                   format_bytes(session_->bytes()));
        fmt::print(stderr, "budget    {}\n", budget_name());
        if (!session_->note().empty()) fmt::print(stderr, "note      {}\n", session_->note());
        if (last_.tokens > 0)
            fmt::print(stderr, "last      {} tokens in {:.2f} s after {:.2f} s of reading the question\n",
                       last_.tokens, last_.answer_seconds, last_.question_seconds);
    }

    const ChatOptions& options_;
    Method method_;
    std::optional<Budget> budget_;
    Model model_;
    Context context_;
    std::optional<Session> session_;
    int turns_ = 0;
    Answer last_;
};

void run(ChatOptions& options, bool has_budget) {
    const MethodOptions::Parsed parsed = options.compression.parse();
    if (options.compression.explained()) return;
    if (!options.context_file.empty()) options.model.choose_for(options.context_file);
    Chat chat(options, parsed.method, has_budget ? std::optional(parsed.budget) : std::nullopt);
    const bool terminal = isatty(STDIN_FILENO) == 1;
    LineEditor editor("chat-history");
    if (terminal) chat.greet();
    for (std::string line;;) {
        if (interrupted && interrupt_signal == SIGINT && terminal) watch_interrupts();  // it came too late
        const LineEditor::Result result = editor.read("> ", line);
        if (result == LineEditor::Result::end) return;
        if (result == LineEditor::Result::interrupted) {
            if (!terminal || interrupt_signal != SIGINT) throw Error("interrupted", Error::Kind::interrupted);
            watch_interrupts();  // Ctrl-C drops the line
            continue;
        }
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        try {
            if (!line.starts_with('/'))
                chat.ask(line);
            else if (!chat.command(line))
                return;
        } catch (const Error& error) {
            // A slip shouldn't cost the conversation; a script should hear of it.
            if (!terminal || (error.kind == Error::Kind::interrupted && !stopped_by_user(error))) throw;
            fmt::print(stderr, "holdfast: {}\n", error.what());
        }
    }
}

}  // namespace

void add_chat(CLI::App& app) {
    const auto options = std::make_shared<ChatOptions>();
    CLI::App* command = app.add_subcommand(
        "chat", "Talk in several turns, about a context that was compressed before or without one");
    command->add_option("context", options->context_file,
                        "Context file (.hfkv) of holdfast compress or /save");
    options->model.add(command);
    options->compression.add(command);
    command->get_option("--budget")->default_str("none: all that is said is kept");
    command->add_option("-n,--tokens", options->most_tokens, "Longest answer in tokens")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    add_sampling_options(command, options->sampling);
    command->callback([options, command] { run(*options, command->count("--budget") > 0); });
}

}  // namespace holdfast
