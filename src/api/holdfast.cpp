#include "holdfast/holdfast.hpp"

#include <algorithm>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "engine/cache_folder.hpp"
#include "engine/context.hpp"
#include "engine/context_file.hpp"
#include "engine/recompressor.hpp"
#include "engine/session.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace holdfast {

struct Model::State {
    GgufModel model;
    Tokenizer tokenizer;
    std::function<bool()> cancelled;
    mutable Compute compute;  // takes one task after another

    State(const std::string& path, const ModelOptions& options, int threads, std::function<bool()> stop)
        : model(path, options),
          tokenizer(path),
          cancelled(std::move(stop)),
          compute(threads > 0 ? threads : int(std::max(1u, std::thread::hardware_concurrency())), cancelled) {
    }

    const HyperParameters& parameters() const { return model.parameters(); }
};

struct Context::State {
    std::shared_ptr<const Model::State> model;
    RaggedCache cache;
    ReadReport report;
    std::vector<int> tokens;
    ContextInfo info;
};

struct Session::State {
    std::shared_ptr<const Model::State> shared_model;
    const Model::State& model = *shared_model;
    ContextInfo info;  // of the context, and of what was done to it since
    std::optional<Compute> own_compute;
    Compute& compute;
    DecoderGraph decoder;
    RaggedCache cache;
    std::vector<int> tokens;
    Sampler sampler;
    std::optional<CompressionRequest> limit = {};
    std::optional<Recompressor> recompressor = {};
    std::string note = {};

    bool conversation;                   // the next question follows an answer
    std::span<const float> logits = {};  // behind what was read; valid until the decoder runs again
    std::optional<int> said = {};        // the last token of the answer, not read yet
    bool answering = false;
    int answer_tokens = 0;
    Utf8Stream stream = {};

    State(const Context::State& context, const SessionOptions& options)
        : shared_model(context.model),
          info(context.info),
          compute(options.threads > 0 ? own_compute.emplace(options.threads, model.cancelled)
                                      : model.compute),
          decoder(model.model, compute),
          cache(context.cache),
          tokens(context.tokens),
          sampler(options.sampling),
          conversation(info.conversation) {}

    // The limit, or what a head needs at least: the window, and a page of chosen tokens. Less would drop the
    // first tokens, which attention leans on, from short conversations.
    CompressionRequest effective_limit() const {
        const double least = double(limit->method.settings().window) + page_tokens;
        const Budget& budget = limit->budget;
        if ((budget.fraction ? budget.tokens_per_head(std::uint32_t(tokens.size())) : budget.value) >= least)
            return *limit;
        return {limit->method, {least, false}};
    }

    void compress(const CompressionRequest& request) {
        if (!recompressor) recompressor.emplace(model.model, compute, decoder);
        note = recompressor->compress(tokens, cache, request);
        info.method = request.method.name();
        info.explanation = request.method.explain();
        info.budget = request.budget.name();
    }

    void compress_to_limit() {
        const CompressionRequest request = effective_limit();
        compress(request);
        if (note.empty() && request.budget.name() != limit->budget.name())
            note = "the budget is smaller than the " + request.budget.name() +
                   " tokens that a head keeps of a conversation";
    }

    // Room for more tokens: at most one page a head above the limit.
    void make_room(std::size_t more) {
        if (!limit) return;
        const HyperParameters& p = model.parameters();
        const std::size_t heads = std::size_t(p.global_layers()) * std::size_t(p.kv_heads);
        const std::size_t allowed =
            allowed_entries(p, effective_limit().budget, std::uint32_t(tokens.size())) + page_tokens * heads;
        if (held_entries(p, cache) + more * heads > allowed) compress_to_limit();
    }

    void read(std::span<const int> more) {
        const std::size_t block = limit ? std::size_t(page_tokens) : more.size();
        for (std::size_t begin = 0; begin < more.size(); begin += block) {
            const auto part = more.subspan(begin, std::min(block, more.size() - begin));
            make_room(part.size());
            try {
                logits = read_tokens(decoder, part, cache, model.parameters().context_length);
            } catch (...) {
                cache.truncate(std::uint32_t(tokens.size()));
                throw;
            }
            tokens.insert(tokens.end(), part.begin(), part.end());
        }
    }

    bool said_is_unread() const {
        return said && !model.tokenizer.ends_answer(*said) &&
               cache.next_position() < model.parameters().context_length;
    }
    // The answer's last token, which the cache lacks so far; one that ends answers belongs to what follows.
    void read_said() {
        if (said_is_unread()) read({&*said, 1});
        said.reset();
    }

    std::vector<int> question_tokens(const std::string& question) const {
        const Tokenizer& tokenizer = model.tokenizer;
        std::vector<int> result;
        const auto add = [&](const std::vector<int>& part) {
            result.insert(result.end(), part.begin(), part.end());
        };
        const Prompt prompt = conversation ? tokenizer.next_turn(question) : tokenizer.prompt("", question);
        if (conversation) {
            add(prompt.context);
            add(prompt.question);
        } else if (info.question.empty()) {
            add(prompt.question);
        } else if (info.question != question) {  // behind the one that was read with the document
            add(tokenizer.tokenize("\n", true));
            add(prompt.question);
        }
        add(prompt.ending);
        return result;
    }
};

// ---- Model

Model::Model(const std::string& path, const ModelOptions& options, int threads,
             std::function<bool()> cancelled) {
    silence_libraries();
    state_ = std::make_shared<const State>(path, options, threads, std::move(cancelled));
}

const std::string& Model::name() const {
    return state_->parameters().name;
}
const std::string& Model::path() const {
    return state_->model.path();
}
const std::string& Model::fingerprint() const {
    return state_->model.fingerprint();
}
std::uint32_t Model::context_length() const {
    return state_->parameters().context_length;
}
int Model::layers() const {
    return state_->parameters().layers;
}
int Model::kv_heads() const {
    return state_->parameters().kv_heads;
}
int Model::head_dim() const {
    return state_->parameters().head_dim;
}
int Model::threads() const {
    return state_->compute.threads();
}
bool Model::has_chat_template() const {
    return state_->tokenizer.has_chat_template();
}

std::vector<int> Model::tokenize(std::string_view text) const {
    return state_->tokenizer.tokenize(text);
}

std::string Model::text(std::span<const int> tokens) const {
    Utf8Stream stream;
    std::string text;
    for (int token : tokens) {
        if (token < 0 || token >= state_->parameters().vocabulary)
            throw Error(std::to_string(token) + " is no token of the model", Error::Kind::usage);
        text += stream.push(state_->tokenizer.piece(token));
    }
    return text + stream.finish();
}

Context Model::compress(const std::string& document, const Method& method, const Budget& budget,
                        const CompressOptions& options) const {
    const State& state = *state_;
    ReadSettings settings;
    settings.method = method;
    settings.budget = budget;
    std::vector<int> tokens;
    if (document.empty()) {
        tokens = state.tokenizer.opening("");
        settings.method = Method::full();
    } else {
        Prompt prompt = state.tokenizer.prompt(document, options.question);
        tokens = std::move(prompt.context);
        tokens.insert(tokens.end(), prompt.question.begin(), prompt.question.end());
    }
    const HyperParameters& p = state.parameters();
    ContextInfo info;
    info.method = settings.method.name();
    info.explanation = settings.method.explain();
    info.budget = settings.method.keeps_all() ? Budget::everything().name() : budget.name();
    if (!document.empty()) info.question = options.question;
    info.sources = options.sources;
    complete_info(info, state.model, std::uint32_t(tokens.size()));
    if (tokens.empty())  // nothing opens a text in this vocabulary
        return Context(std::make_shared<const Context::State>(
            Context::State{state_,
                           RaggedCache(std::make_shared<PagePool>(p.head_dim), p.layers, p.kv_heads),
                           {},
                           {},
                           std::move(info)}));
    ReadContext read =
        read_context(state.model, state.compute, tokens, settings, [&](const ReadProgress& progress) {
            if (options.progress && !options.progress(progress))
                throw Error("interrupted", Error::Kind::interrupted);
        });
    return Context(std::make_shared<const Context::State>(Context::State{
        state_, std::move(read.cache), std::move(read.report), std::move(tokens), std::move(info)}));
}

Context Model::load(const std::string& path) const {
    const ContextFile file(path);
    ReadContext context = file.context(state_->model);
    return Context(std::make_shared<const Context::State>(
        Context::State{state_, std::move(context.cache), std::move(context.report),
                       std::vector<int>(file.tokens().begin(), file.tokens().end()), file.info()}));
}

// ---- Context

Model Context::model() const {
    return Model(state_->model);
}
const ContextInfo& Context::info() const {
    return state_->info;
}
const ReadReport& Context::report() const {
    return state_->report;
}
std::uint32_t Context::tokens() const {
    return std::uint32_t(state_->tokens.size());
}
std::span<const int> Context::ids() const {
    return state_->tokens;
}
std::size_t Context::bytes() const {
    return state_->cache.bytes();
}

std::span<const std::uint32_t> Context::kept(int layer, int kv_head) const {
    const RaggedCache& cache = state_->cache;
    if (layer < 0 || layer >= cache.layers() || kv_head < 0 || kv_head >= cache.kv_heads())
        throw Error("there is no KV head " + std::to_string(kv_head) + " of layer " + std::to_string(layer) +
                        ": the model has " + std::to_string(cache.layers()) + " layers of " +
                        std::to_string(cache.kv_heads()),
                    Error::Kind::usage);
    return cache.positions(layer, kv_head);
}

void Context::save(const std::string& path, KvType type) const {
    ContextInfo info = state_->info;
    info.kv_type = type;
    save_context(path, state_->model->model, state_->cache, state_->tokens, std::move(info));
}

Context Context::compressed(const Method& method, const Budget& budget) const {
    check_recompression(method);
    if (method.keeps_all() || (budget.fraction && budget.value >= 1)) return *this;
    Session session = this->session();
    session.state_->compress({method, budget});
    return session.context();
}

Session Context::session(const SessionOptions& options) const {
    return Session(std::make_unique<Session::State>(*state_, options));
}

// ---- Session

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

void Session::begin(const std::string& question) {
    State& state = *state_;
    state.answering = false;
    const std::vector<int> tokens = state.question_tokens(question);
    if (tokens.empty()) throw Error("the question is empty", Error::Kind::usage);
    check_room(state.cache, tokens.size() + (state.said_is_unread() ? 1 : 0),
               state.model.parameters().context_length);
    state.read_said();
    // As if it had not been asked, if it fails: what a limit or a sliding window drops meanwhile, too.
    RaggedCache before(state.cache);
    const std::size_t count = state.tokens.size();
    const ContextInfo info = state.info;
    const std::string note = state.note;
    try {
        state.read(tokens);
    } catch (...) {
        state.cache.take(before);
        state.tokens.resize(count);
        state.info = info;
        state.note = note;
        throw;
    }
    state.conversation = true;
    state.stream = {};
    state.answer_tokens = 0;
    state.answering = true;
}

bool Session::next(std::string& text) {
    State& state = *state_;
    text.clear();
    if (!state.answering) return false;
    const bool room = state.cache.next_position() < state.model.parameters().context_length;
    if (room) {
        try {
            state.read_said();
        } catch (...) {
            state.answering = false;
            throw;
        }
    }
    if (room || !state.said) {
        const int token = state.sampler.choose(state.logits);
        state.said = token;
        ++state.answer_tokens;
        if (!state.model.tokenizer.ends_answer(token)) {
            text = state.stream.push(state.model.tokenizer.piece(token));
            return true;
        }
    }
    text = end();
    return !text.empty();
}

std::string Session::end() {
    state_->answering = false;
    return state_->stream.finish();
}

Answer Session::ask(const std::string& question, int most_tokens,
                    const std::function<bool(std::string_view)>& on_text) {
    Answer answer;
    const Stopwatch watch;
    begin(question);
    answer.question_seconds = watch.seconds();
    const auto emit = [&](const std::string& text) {
        answer.text += text;
        return !on_text || text.empty() || on_text(text);
    };
    std::string text;
    bool wanted = true;
    while (wanted && state_->answer_tokens < most_tokens && next(text)) wanted = emit(text);
    const std::string rest = end();
    if (wanted) emit(rest);
    answer.tokens = state_->answer_tokens;
    answer.answer_seconds = watch.seconds() - answer.question_seconds;
    return answer;
}

void Session::limit(const Method& method, const Budget& budget) {
    check_recompression(method);
    State& state = *state_;
    if (method.keeps_all() || (budget.fraction && budget.value >= 1)) {
        state.limit.reset();
        state.note.clear();
        return;
    }
    state.answering = false;  // its logits go
    const std::optional<CompressionRequest> before = state.limit;
    state.limit = {method, budget};
    try {
        state.read_said();
        state.compress_to_limit();
    } catch (...) {
        state.limit = before;
        throw;
    }
    state.cache.defragment();
}

std::uint32_t Session::tokens() const {
    return std::uint32_t(state_->tokens.size());
}
std::size_t Session::bytes() const {
    return state_->cache.bytes();
}
double Session::kept_mean() const {
    const HyperParameters& p = state_->model.parameters();
    return double(held_entries(p, state_->cache)) / std::max(1, p.global_layers() * p.kv_heads);
}
std::string Session::note() const {
    return state_->note;
}

Context Session::context() {
    State& state = *state_;
    state.answering = false;
    state.read_said();
    ContextInfo info = state.info;
    info.conversation = state.conversation;
    complete_info(info, state.model.model, std::uint32_t(state.tokens.size()));
    ReadReport report = report_of(state.model.parameters(), state.cache);
    report.note = state.note;
    return Context(std::make_shared<const Context::State>(
        Context::State{state.shared_model, state.cache, std::move(report), state.tokens, std::move(info)}));
}

// ---- free functions

ContextInfo read_context_info(const std::string& path) {
    return ContextFile(path).info();
}

std::string default_model_path() {
    return cache_folder() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

const char* version() {
    return HOLDFAST_VERSION;
}

}  // namespace holdfast
