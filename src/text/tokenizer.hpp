#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast {

// Keeps what llama.cpp and ggml log to themselves; their errors reach the user as ours.
void silence_libraries();

// A user's turn about a document, in the form that the model was trained on.
struct Prompt {
    std::vector<int> context;   // the opening and the document, up to where the question starts
    std::vector<int> question;  // the question alone
    std::vector<int> ending;    // from there to where the answer starts
};

// The vocabulary and the chat template of a GGUF file.
class Tokenizer {
  public:
    explicit Tokenizer(const std::string& model_path);
    ~Tokenizer();

    // Plain text: what looks like a control token is read as the characters it consists of. Bytes that
    // aren't valid UTF-8 become the vocabulary's byte tokens. goes_on: other text stands before it, so that a
    // vocabulary that puts a space in front of a text doesn't.
    std::vector<int> tokenize(std::string_view text, bool goes_on = false) const;

    // The bytes of a token, which may be part of a character; nothing for control tokens.
    std::string piece(int token) const;
    bool ends_answer(int token) const;

    bool has_chat_template() const;

    // A document and a question about it as one user's turn; without a chat template as plain text.
    // Neither can open a turn. The document ends with an empty line before the question.
    Prompt prompt(std::string_view document, std::string_view question) const;

    // A further turn of the user, behind an answer: what closes the answer and opens the turn (context), the
    // question, and the ending. Throws Error for a chat template that has no place for a second turn.
    Prompt next_turn(std::string_view question) const;

    // Both exactly as they are, nothing in between. chat: as a user's turn, which needs a chat template;
    // otherwise nothing stands before or behind them but what begins every text.
    Prompt exact_prompt(std::string_view context, std::string_view question, bool chat) const;

    // The turn's opening and the document alone, as prompt() begins but without the empty line.
    std::vector<int> opening(std::string_view document) const;

  private:
    std::vector<int> begin(std::string_view before, std::string_view text) const;

    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast
