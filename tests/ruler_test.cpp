// RULER's tasks as they are generated: what is hidden where, lengths, repeatability.
#include "eval/ruler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "holdfast/error.hpp"
#include "holdfast/holdfast.hpp"
#include "model_files.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {
namespace {

std::size_t occurrences(const std::string& text, const std::string& what) {
    std::size_t count = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
    return count;
}

// Made-up words and an essay of them, and questions in the published forms.
RulerMaterial material() {
    RulerMaterial result;
    for (char a : std::string("bcdfglmnprst"))
        for (char b : std::string("aeiou"))
            for (char c : std::string("bdklmnrstv"))
                for (char d : std::string("aeo")) result.words.push_back({a, b, c, d});
    for (std::size_t i = 0; i < 3000; ++i) {
        result.essay += result.words[i * 7 % result.words.size()];
        result.essay += i % 11 == 10 ? ". " : " ";
    }
    result.squad = testing::temporary_path("squad.json");
    std::ofstream squad(result.squad);
    squad << R"({"data": [)";
    for (int article = 0; article < 20; ++article) {
        squad << (article == 0 ? "" : ",") << R"({"paragraphs": [)";
        for (int p = 0; p < 3; ++p) {
            const std::string name = std::to_string(article) + "-" + std::to_string(p);
            squad << (p == 0 ? "" : ",") << R"({"context": "Paragraph )" << name
                  << R"( tells of many things, one after another, at some length and with care.", "qas": [)"
                  << R"({"question": "What is in )" << name
                  << R"(?", "is_impossible": false, "answers": [{"text": "thing )" << name
                  << R"("}]}, {"question": "Nothing?", "is_impossible": true, "answers": []}]})";
        }
        squad << "]}";
    }
    squad << "]}";
    result.hotpotqa = testing::temporary_path("hotpotqa.json");
    std::ofstream(result.hotpotqa)
        << R"([{"question": "Who?", "answer": "Nobody", "context": [["A", ["First. ", "Second."]], ["B", ["Third."]]]},
        {"question": "Where?", "answer": "Nowhere", "context": [["C", ["Fourth."]]]}])";
    return result;
}

struct Vocabulary {
    std::string name, path;
};

std::vector<Vocabulary> vocabularies() {
    const std::string pieces = testing::temporary_path("pieces.gguf");
    testing::write_sentencepiece_vocabulary(pieces, "");
    const std::filesystem::path models = std::filesystem::path(default_model_path()).parent_path();
    return {{"SmolLM2", default_model_path()},
            {"Gemma3", (models / "gemma-3-270m-q4_k_m.gguf").string()},
            {"letters", pieces}};
}

RulerGenerator::Count counter(const Tokenizer& tokenizer) {
    return [&tokenizer](const Sample& s) {
        const Prompt prompt = tokenizer.exact_prompt(s.context, s.question, tokenizer.has_chat_template());
        return prompt.context.size() + prompt.question.size() + prompt.ending.size() +
               tokenizer.tokenize(s.answer_prefix, true).size();
    };
}

// Breaks if a task isn't filled to 98% of its length, exceeds it, or differs between runs or beside other
// tasks.
TEST(Ruler, LengthsAndRepeatability) {
    for (const Vocabulary& vocabulary : vocabularies()) {
        const Tokenizer tokenizer(vocabulary.path);
        for (const std::uint32_t length : {4096u, 12000u}) {
            // A token a letter leaves 4,096 tokens no room for the longest examples.
            if (length > 5000 ? testing::sanitized : vocabulary.name == "letters") continue;
            RulerSettings settings;
            settings.length = length;
            const RulerGenerator generator(material(), settings, counter(tokenizer)),
                again(material(), settings, counter(tokenizer));
            for (const std::string& task : ruler_tasks()) {
                ASSERT_EQ(generator.missing(task), "");
                const Sample sample = generator.generate(task, 1);
                const std::size_t tokens = counter(tokenizer)(sample) + std::size_t(sample.most_tokens);
                const std::string what = task + " of " + vocabulary.name + " at " + std::to_string(length);
                EXPECT_LE(tokens, length) << what;
                if (!task.starts_with("qa_")) {
                    EXPECT_GE(double(tokens), 0.98 * length) << what;
                }
                const Sample same = again.generate(task, 1);
                EXPECT_EQ(same.context, sample.context) << what;
                EXPECT_EQ(same.answers, sample.answers) << what;
                EXPECT_NE(again.generate(task, 0).context, sample.context) << what;
            }
        }
    }
}

// Breaks if a needle isn't where it should be, a distractor is an answer, or the question asks for something
// else.
TEST(Ruler, NeedlesAreThereOnceEach) {
    const Tokenizer tokenizer(default_model_path());
    const RulerGenerator generator(material(), {}, counter(tokenizer));
    for (const std::string& task : ruler_tasks()) {
        if (!task.starts_with("niah")) continue;
        for (int i = 0; i < 4; ++i) {
            const Sample sample = generator.generate(task, i);
            SCOPED_TRACE(task + ": " + sample.question);
            const bool many = task == "niah_multivalue" || task == "niah_multiquery";
            ASSERT_EQ(sample.answers.size(), many ? 4u : 1u);
            EXPECT_EQ(std::set<std::string>(sample.answers.begin(), sample.answers.end()).size(),
                      sample.answers.size());
            for (const std::string& answer : sample.answers) {
                const std::size_t at = sample.context.find(" is: " + answer + ".");
                ASSERT_NE(at, std::string::npos);
                EXPECT_EQ(occurrences(sample.context, answer), 1u);
                // Its key is one that is asked for.
                const std::size_t key_at = sample.context.rfind(" for ", at) + 5;
                const std::string key = sample.context.substr(key_at, at - key_at);
                EXPECT_NE(sample.question.find(key), std::string::npos) << key;
                EXPECT_NE(sample.answer_prefix.find(key), std::string::npos);
            }
            const std::size_t needles = occurrences(sample.context, "One of the special magic ");
            if (task == "niah_multikey_1" || many)
                EXPECT_EQ(needles, 4u);
            else if (task == "niah_multikey_2" || task == "niah_multikey_3")
                EXPECT_GT(needles, 15u);
            else
                EXPECT_EQ(needles, 1u);
            EXPECT_EQ(sample.question.starts_with("What are all the special magic "), many);
            EXPECT_EQ(sample.metric, Metric::string_match_all);
            EXPECT_EQ(sample.most_tokens, 128);
        }
    }
}

// Breaks if the chain is broken, the common words aren't the most common, or the frequent ones the most
// frequent.
TEST(Ruler, ChainsAndCounts) {
    const Tokenizer tokenizer(default_model_path());
    const RulerGenerator generator(material(), {}, counter(tokenizer));
    for (int i = 0; i < 4; ++i) {
        const Sample chain = generator.generate("vt", i);
        ASSERT_EQ(chain.answers.size(), 5u);
        const std::size_t value_at = chain.question.find("value ") + 6;
        const std::string value = chain.question.substr(value_at, 5);
        std::size_t at = chain.context.find("VAR " + chain.answers[0] + " = " + value);
        ASSERT_NE(at, std::string::npos);
        for (std::size_t v = 1; v < 5; ++v) {
            const std::size_t next =
                chain.context.find("VAR " + chain.answers[v] + " = VAR " + chain.answers[v - 1]);
            ASSERT_NE(next, std::string::npos);
            EXPECT_GT(next, at);  // in order
            at = next;
        }

        const Sample common = generator.generate("cwe", i);
        std::string list = common.context.substr(common.context.rfind("Memorize the ones"));
        list.back() = ' ';
        ASSERT_EQ(common.answers.size(), 10u);
        for (const std::string& word : common.answers)
            EXPECT_EQ(occurrences(list, " " + word + " "), 6u) << word;

        const Sample frequent = generator.generate("fwe", i);
        ASSERT_EQ(frequent.answers.size(), 3u);
        std::size_t before = 1u << 30;
        for (const std::string& word : frequent.answers) {
            const std::size_t count = occurrences(frequent.context, word);
            EXPECT_LT(count, before);
            EXPECT_GT(count, 5u);
            before = count;
        }
        EXPECT_GT(occurrences(frequent.context, " ... "), before);
    }
}

// Breaks if the document with the answer isn't among those given, or what can't be made isn't said.
TEST(Ruler, QuestionsAndWhatIsMissing) {
    const Tokenizer tokenizer(default_model_path());
    const RulerGenerator generator(material(), {}, counter(tokenizer));
    const Sample squad = generator.generate("qa_1", 4);
    EXPECT_NE(squad.question.find("What is in 1-1?"), std::string::npos);
    EXPECT_NE(squad.context.find("Paragraph 1-1 "), std::string::npos);
    EXPECT_EQ(squad.answers, std::vector<std::string>{"thing 1-1"});
    EXPECT_EQ(squad.metric, Metric::string_match_part);
    const Sample hotpot = generator.generate("qa_2", 0);
    EXPECT_NE(hotpot.context.find("A\nFirst. Second."), std::string::npos);
    EXPECT_NE(hotpot.context.find("Document 3:"), std::string::npos);

    const RulerGenerator bare({}, {}, counter(tokenizer));
    for (const std::string& task : ruler_tasks())
        EXPECT_EQ(bare.missing(task).empty(), task == "vt" || task == "fwe" || task == "niah_multikey_3")
            << task;
    RulerMaterial broken = material();
    std::ofstream(broken.squad) << R"({"data": [{"paragraphs": 3}]})";
    EXPECT_THROW(RulerGenerator(broken, {}, counter(tokenizer)), Error);
    RulerSettings tiny;
    tiny.length = 256;
    EXPECT_THROW(RulerGenerator(material(), tiny, counter(tokenizer)).generate("cwe", 0), Error);
    EXPECT_THROW(read_words(material().squad), Error);
    EXPECT_THROW(read_haystack(material().hotpotqa + ".absent"), Error);
}

}  // namespace
}  // namespace holdfast
