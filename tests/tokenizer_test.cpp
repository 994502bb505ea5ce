// Prompts of vocabularies that put a space in front of a text, and templates that fail.
#include "text/tokenizer.hpp"

#include <gtest/gtest.h>

#include "holdfast/error.hpp"
#include "model_files.hpp"

namespace holdfast {
namespace {

std::string text_of(const Tokenizer& tokenizer, const Prompt& prompt) {
    std::string text;
    for (const std::vector<int>* part : {&prompt.context, &prompt.question, &prompt.ending})
        for (int token : *part) text += tokenizer.piece(token);
    return text;
}

// Breaks if a document, a question or the template's text gets a space in front of it that isn't there when
// the prompt is written in one piece.
TEST(SentencePiece, PartsJoinWithoutSpaces) {
    const std::string path = testing::temporary_path("sentencepiece.gguf");
    testing::write_sentencepiece_vocabulary(path,
                                            "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]");
    const Tokenizer tokenizer(path);
    EXPECT_EQ(text_of(tokenizer, tokenizer.prompt("the boat", "the name?")),
              " [INST] the boat\n\nthe name? [/INST]");
    // Behind a control token the vocabulary's space belongs there; anywhere else it doesn't.
    testing::write_sentencepiece_vocabulary(path, "{{ bos_token }}{{ messages[0]['content'] }}</s>");
    EXPECT_EQ(text_of(Tokenizer(path), Tokenizer(path).prompt("the boat", "he")), " the boat\n\nhe");
    testing::write_sentencepiece_vocabulary(path, "");
    const Tokenizer plain(path);
    EXPECT_FALSE(plain.has_chat_template());
    EXPECT_EQ(text_of(plain, plain.prompt("the boat", "he")), " the boat\n\nhe\n");
}

// Breaks if bytes that aren't UTF-8 are lost, or a control token in the text is read as one.
TEST(SentencePiece, BytesAndControlTokensStayText) {
    const std::string path = testing::temporary_path("sentencepiece.gguf");
    testing::write_sentencepiece_vocabulary(path, "");
    const Tokenizer tokenizer(path);
    std::string text;
    for (int token : tokenizer.tokenize("a</s>\xff he", true)) text += tokenizer.piece(token);
    EXPECT_EQ(text, "a</s>\xff he");
}

// Breaks if a file without a vocabulary crashes instead of saying so.
TEST(Vocabulary, IsNeeded) {
    const std::string path = testing::temporary_path("silent.gguf");
    testing::write_random_model(path, {});
    EXPECT_THROW(Tokenizer{path}, Error);
}

// Breaks if a template that fails, or leaves the user's text out, becomes a silently different prompt.
TEST(ChatTemplate, FailuresAreErrors) {
    const std::string path = testing::temporary_path("template.gguf");
    for (const char* bad :
         {"{{ raise_exception('no such role') }}", "{{ bos_token }}Hello",
          "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}", "{% if %}"}) {
        testing::write_sentencepiece_vocabulary(path, bad);
        EXPECT_THROW(Tokenizer{path}, Error) << bad;
    }
}

// Breaks if a second turn isn't as the template writes it, or a template that refuses one becomes a guess.
TEST(ChatTemplate, FurtherTurns) {
    const std::string path = testing::temporary_path("turns.gguf");
    testing::write_sentencepiece_vocabulary(
        path,
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
        "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}");
    EXPECT_EQ(text_of(Tokenizer(path), Tokenizer(path).next_turn("he")), " [INST] he [/INST]");
    testing::write_sentencepiece_vocabulary(path,
                                            "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]");
    EXPECT_THROW(Tokenizer(path).next_turn("he"), Error);
    testing::write_sentencepiece_vocabulary(path, "");
    EXPECT_EQ(text_of(Tokenizer(path), Tokenizer(path).next_turn("he")), "\n\nhe\n");
}

}  // namespace
}  // namespace holdfast
