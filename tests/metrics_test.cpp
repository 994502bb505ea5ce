// The metrics against scores of the packages that LongBench itself uses (tests/metrics/make-vectors.py).
#include "eval/metrics.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "holdfast/error.hpp"

namespace holdfast {
namespace {

// Breaks if a metric differs from the original's: in case, articles, punctuation, Unicode, sentences, the
// choice of a common subsequence, popular characters, rounding, or where Chinese words end (the dictionary is
// that of scripts/fetch.sh jieba).
TEST(Metrics, EqualTheOriginals) {
    std::ifstream file(HOLDFAST_SOURCE_DIR "/tests/metrics/vectors.jsonl");
    ASSERT_TRUE(file);
    std::map<std::string, int> checked, above_zero;
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json vector = nlohmann::json::parse(line);
        const std::string name = vector["metric"];
        const double expected = vector["score"];
        const double ours = score(parse_metric(name), vector["prediction"].get<std::string>(),
                                  vector["answers"].get<std::vector<std::string>>(),
                                  vector.value("classes", std::vector<std::string>()));
        ASSERT_NEAR(ours, expected, 1e-6) << line;
        ++checked[name];
        above_zero[name] += expected > 0;
    }
    ASSERT_EQ(checked.size(), 9u);
    for (const auto& [name, count] : checked) {
        EXPECT_GE(count, 300) << name;
        EXPECT_GT(above_zero[name], count / 5) << name;
    }
}

// RULER's, by their definition: shares of the answers that occur, whatever their case.
TEST(Metrics, StringMatches) {
    const std::vector<std::string> answers = {"1234567", "ABCDE"};
    EXPECT_EQ(score(Metric::string_match_all, "it is 1234567.", answers), 0.5);
    EXPECT_EQ(score(Metric::string_match_all, "1234567 and abcde", answers), 1);
    EXPECT_EQ(score(Metric::string_match_part, "abcdefg", answers), 1);
    EXPECT_EQ(score(Metric::string_match_part, "123456", answers), 0);
    EXPECT_EQ(score(Metric::string_match_all, "", answers), 0);
}

TEST(Metrics, NamesAndBadAnswers) {
    for (const char* name : {"string_match_all", "string_match_part", "f1", "rouge_l", "classification",
                             "retrieval", "count", "code_sim", "f1_zh", "rouge_l_zh", "retrieval_zh"})
        EXPECT_STREQ(metric_name(parse_metric(name)), name);
    EXPECT_THROW(parse_metric("bleu"), Error);
    EXPECT_THROW(score(Metric::retrieval, "Paragraph 3", {"the third"}), Error);
}

}  // namespace
}  // namespace holdfast
