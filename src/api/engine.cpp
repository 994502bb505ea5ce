#include "holdfast/engine.hpp"

#include <algorithm>
#include <thread>

#include "base/error.hpp"
#include "engine/cache_folder.hpp"
#include "engine/context.hpp"
#include "engine/session.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace holdfast {

struct Reading::State {
    Context context;
    std::string fingerprint;  // of the model
};

std::uint32_t Reading::tokens() const {
    return state_->context.report.tokens;
}
int Reading::layers() const {
    return state_->context.cache.layers();
}
int Reading::kv_heads() const {
    return state_->context.cache.kv_heads();
}
std::vector<std::uint32_t> Reading::kept(int layer, int kv_head) const {
    const auto positions = state_->context.cache.positions(layer, kv_head);
    return {positions.begin(), positions.end()};
}
std::size_t Reading::bytes() const {
    return state_->context.cache.bytes();
}

struct Engine::State {
    Model model;
    Tokenizer tokenizer;
    Compute compute;
    DecoderGraph decoder;
    std::string fingerprint;

    State(const std::string& path, int threads)
        : model(path),
          tokenizer(path),
          compute(threads > 0 ? threads : int(std::max(1u, std::thread::hardware_concurrency()))),
          decoder(model, compute),
          fingerprint(model.fingerprint()) {}
};

Engine::Engine(const std::string& model, int threads) {
    silence_libraries();
    state_ = std::make_unique<State>(model, threads);
}

Engine::~Engine() = default;

Reading Engine::read(const std::string& document, const Method& method, const Budget& budget) {
    ReadSettings settings;
    settings.method = method;
    settings.budget = budget;
    const std::vector<int> tokens = state_->tokenizer.prompt(document, "").context;
    return Reading(std::make_shared<const Reading::State>(
        Reading::State{read_context(state_->model, state_->compute, tokens, settings), state_->fingerprint}));
}

std::string Engine::answer(const Reading& reading, const std::string& question, int most) {
    if (reading.state_->fingerprint != state_->fingerprint)
        throw Error("this was read with another model than '" + state_->model.path() + "'",
                    Error::Kind::usage);
    const Prompt prompt = state_->tokenizer.prompt("", question);
    std::vector<int> tokens = prompt.question;
    tokens.insert(tokens.end(), prompt.ending.begin(), prompt.ending.end());
    Session session(state_->decoder, reading.state_->context.cache, state_->model.parameters().context_length,
                    {});
    Utf8Stream stream;
    std::string answer;
    session.answer(session.read(tokens), most, [&](int token) {
        if (state_->tokenizer.ends_answer(token)) return false;
        answer += stream.push(state_->tokenizer.piece(token));
        return true;
    });
    return answer + stream.finish();
}

std::string default_model_path() {
    return cache_folder() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace holdfast
