#include "text/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <exception>

#include "holdfast/error.hpp"
#include "chat.h"
#include "llama.h"
#include "text/utf8.hpp"

namespace holdfast {

void silence_libraries() {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);  // ggml's too
}

struct Tokenizer::State {
    llama_model* model = nullptr;
    const llama_vocab* vocab = nullptr;
    common_chat_templates_ptr templates;  // null: the file has none
    std::array<int, 256> byte_tokens;     // -1 where the vocabulary has none
    std::string before, behind = "\n";    // of the user's text in its turn
    std::string between;                  // an answer and the user's next text; empty: not known
    bool puts_space = false;              // in front of what is tokenized by itself (SentencePiece)
    std::vector<int> line_break;          // the tokens of "\n" by itself

    ~State() { llama_model_free(model); }

    std::vector<int> tokenize(std::string_view text, bool control_tokens) const {
        std::vector<int> tokens(text.size() + 2);
        const int count = llama_tokenize(vocab, text.data(), int(text.size()), tokens.data(),
                                         int(tokens.size()), false, control_tokens);
        if (count < 0) throw Error("the text is too long for the tokenizer");
        tokens.resize(std::size_t(count));
        return tokens;
    }

    // Text that goes on from other text, so that no space belongs in front of it.
    std::vector<int> tokenize_on(std::string_view text, bool control_tokens) const {
        if (!puts_space || text.empty()) return tokenize(text, control_tokens);
        std::string behind_break(1, '\n');
        behind_break += text;
        const std::vector<int> tokens = tokenize(behind_break, control_tokens);
        if (tokens.size() < line_break.size() ||
            !std::equal(line_break.begin(), line_break.end(), tokens.begin()))
            return tokenize(text, control_tokens);  // the break became part of a longer token
        return {tokens.begin() + std::ptrdiff_t(line_break.size()), tokens.end()};
    }

    // The template's text around these, which the user and the model say in turn, up to where the model's
    // next answer starts; empty if it doesn't repeat each exactly once.
    std::vector<std::string> render(const std::vector<std::string>& said) const {
        common_chat_templates_inputs inputs;
        for (std::size_t i = 0; i < said.size(); ++i) {
            common_chat_msg message;
            message.role = i % 2 == 0 ? "user" : "assistant";
            message.content = said[i];
            inputs.messages.push_back(message);
        }
        inputs.add_generation_prompt = true;
        const std::string prompt = common_chat_templates_apply(templates.get(), inputs).prompt;
        std::vector<std::string> parts;
        std::size_t begin = 0;
        for (const std::string& mark : said) {
            const std::size_t at = prompt.find(mark);
            if (at == std::string::npos || at < begin || prompt.find(mark, at + 1) != std::string::npos)
                return {};
            parts.push_back(prompt.substr(begin, at - begin));
            begin = at + mark.size();
        }
        parts.push_back(prompt.substr(begin));
        return parts;
    }

    // Renders the template around marks that stand for what is said: letters alone, so that no template trims
    // or escapes them.
    void find_turns() {
        if (!templates) {
            between = "\n\n";
            return;
        }
        const std::string first = "HOLDFASTuserHOLDFASTturnHOLDFAST";
        try {
            const std::vector<std::string> parts = render({first});
            if (parts.empty())
                throw Error("the model's chat template doesn't repeat the user's text exactly once");
            before = parts[0];
            behind = parts[1];
        } catch (const Error&) {
            throw;
        } catch (const std::exception& error) {
            throw Error(std::string("the model's chat template failed: ") + error.what());
        }
        try {
            const std::vector<std::string> parts =
                render({first, "HOLDFASTsaidHOLDFAST", "HOLDFASTnextHOLDFAST"});
            if (!parts.empty()) between = parts[2];
        } catch (const std::exception&) {  // next_turn() says so when somebody wants one
        }
    }
};

Tokenizer::Tokenizer(const std::string& model_path) : state_(new State) {
    llama_model_params parameters = llama_model_default_params();
    parameters.vocab_only = true;
    state_->model = llama_model_load_from_file(model_path.c_str(), parameters);
    if (state_->model == nullptr) throw Error("'" + model_path + "': its vocabulary can't be read");
    state_->vocab = llama_model_get_vocab(state_->model);
    if (llama_vocab_type(state_->vocab) == LLAMA_VOCAB_TYPE_NONE)
        throw Error("'" + model_path + "' has no vocabulary, so it can't read text");
    if (llama_model_chat_template(state_->model, nullptr) != nullptr) {
        try {
            state_->templates = common_chat_templates_init(state_->model, "");
        } catch (const std::exception& error) {
            throw Error("'" + model_path + "': its chat template can't be parsed: " + error.what());
        }
    }
    state_->find_turns();
    state_->line_break = state_->tokenize("\n", false);
    const std::vector<int> letter = state_->tokenize("a", false);
    state_->puts_space = !letter.empty() && piece(letter.front()).starts_with(' ');
    state_->byte_tokens.fill(-1);
    for (int token = 0; token < llama_vocab_n_tokens(state_->vocab); ++token) {
        const std::string bytes = piece(token);
        if (bytes.size() == 1) state_->byte_tokens[static_cast<unsigned char>(bytes[0])] = token;
    }
}

Tokenizer::~Tokenizer() = default;

std::vector<int> Tokenizer::tokenize(std::string_view text, bool goes_on) const {
    std::vector<int> tokens;
    while (!text.empty()) {
        std::size_t valid = 0;
        while (const std::size_t length = utf8_sequence(text.substr(valid))) valid += length;
        const std::string_view part = text.substr(0, valid);
        const std::vector<int> run =
            goes_on ? state_->tokenize_on(part, false) : state_->tokenize(part, false);
        goes_on = true;
        tokens.insert(tokens.end(), run.begin(), run.end());
        text.remove_prefix(valid);
        if (text.empty()) break;
        const int token = state_->byte_tokens[static_cast<unsigned char>(text[0])];
        if (token >= 0) tokens.push_back(token);
        text.remove_prefix(1);
    }
    return tokens;
}

std::string Tokenizer::piece(int token) const {
    std::string bytes(32, '\0');
    int length = llama_token_to_piece(state_->vocab, token, bytes.data(), int(bytes.size()), 0, false);
    if (length < 0) {
        bytes.resize(std::size_t(-length));
        length = llama_token_to_piece(state_->vocab, token, bytes.data(), int(bytes.size()), 0, false);
    }
    bytes.resize(std::size_t(length));
    return bytes;
}

bool Tokenizer::ends_answer(int token) const {
    return llama_vocab_is_eog(state_->vocab, token);
}

bool Tokenizer::has_chat_template() const {
    return bool(state_->templates);
}

std::vector<int> Tokenizer::begin(std::string_view before, std::string_view text) const {
    std::vector<int> tokens = state_->tokenize(before, true);
    const int bos = llama_vocab_bos(state_->vocab);
    if (llama_vocab_get_add_bos(state_->vocab) && bos >= 0 && (tokens.empty() || tokens.front() != bos))
        tokens.insert(tokens.begin(), bos);
    // Behind a control token the vocabulary's own space stands, as in whatever the model was trained on.
    const bool goes_on = !tokens.empty() && !llama_vocab_is_control(state_->vocab, tokens.back());
    const std::vector<int> rest = tokenize(text, goes_on);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
}

std::vector<int> Tokenizer::opening(std::string_view document) const {
    return begin(state_->before, document);
}

Prompt Tokenizer::prompt(std::string_view document, std::string_view question) const {
    std::string text(document);
    while (!text.ends_with("\n\n")) text += '\n';
    return {opening(text), tokenize(question, true), state_->tokenize_on(state_->behind, true)};
}

Prompt Tokenizer::next_turn(std::string_view question) const {
    if (state_->between.empty())
        throw Error("the model's chat template has no place for a second turn behind an answer");
    const std::vector<int> opening = state_->tokenize_on(state_->between, true);
    const bool goes_on = opening.empty() || !llama_vocab_is_control(state_->vocab, opening.back());
    return {opening, tokenize(question, goes_on), state_->tokenize_on(state_->behind, true)};
}

Prompt Tokenizer::exact_prompt(std::string_view context, std::string_view question, bool chat) const {
    return {begin(chat ? state_->before : "", context), tokenize(question, true),
            chat ? state_->tokenize_on(state_->behind, true) : std::vector<int>()};
}

}  // namespace holdfast
