// What an evaluation says about its results: means, intervals, losses, reports; and how prompts are cut.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "holdfast/error.hpp"
#include "eval/evaluation.hpp"
#include "eval/report.hpp"
#include "eval/summary.hpp"

namespace holdfast {
namespace {

SampleResult result(const std::string& task, int sample, const std::string& method, double score) {
    SampleResult r;
    r.task = task;
    r.sample = task + ":" + std::to_string(sample);
    r.prompt = "p" + std::to_string(sample);
    r.method = method;
    r.budget = method == "full" ? "100%" : "20%";
    r.score = score;
    r.tokens = 100;
    r.kept_mean = method == "full" ? 100 : 20;
    r.kept_by_layer =
        method == "full" ? std::vector<std::uint32_t>{200, 200} : std::vector<std::uint32_t>{60, 20};
    r.prefill_seconds = r.answer_seconds = 1;
    r.answer_tokens = 30;
    return r;
}

// Two tasks of unlike sizes, so that a mean over samples differs from one over tasks.
std::vector<SampleResult> results() {
    std::vector<SampleResult> all;
    for (int i = 0; i < 10; ++i) {
        all.push_back(result("a", i, "full", 1));
        all.push_back(result("a", i, "adakv", i % 2));            // half
        all.push_back(result("a", i, "critical-adakv", i != 0));  // 90%
    }
    for (int i = 0; i < 4; ++i)
        for (const char* method : {"full", "adakv", "critical-adakv"})
            all.push_back(result("b", i, method, 0.5));
    return all;
}

// Breaks if samples are averaged over tasks, pairs aren't paired, or a loss isn't relative to the full cache.
TEST(Summary, MeansLossesDifferences) {
    const Summary summary(results());
    EXPECT_EQ(summary.tasks(), (std::vector<std::string>{"a", "b"}));
    const Column full{"full", "100%"}, ada{"adakv", "20%"}, critical{"critical-adakv", "20%"};
    EXPECT_DOUBLE_EQ(summary.mean(full), 75);
    EXPECT_DOUBLE_EQ(summary.mean(ada), 50);
    EXPECT_DOUBLE_EQ(summary.mean_interval(critical).mean, 70);
    EXPECT_NEAR(summary.loss(ada).mean, 100 * 25.0 / 75, 1e-12);
    EXPECT_DOUBLE_EQ(summary.difference(critical, ada).mean, 20);
    EXPECT_DOUBLE_EQ(summary.difference(ada, critical).mean, -20);
    EXPECT_TRUE(summary.complete());
    EXPECT_EQ(summary.mean_name(), "mean of 2");

    std::vector<SampleResult> partial = results();
    partial.pop_back();
    EXPECT_FALSE(Summary(partial).complete());
    EXPECT_EQ(Summary(partial).samples("b", critical), 3u);
}

// Breaks if draws cross tasks, ignore the pairing, or percentiles are wrong. Half of ten samples right: the
// number right in a draw is binomial(10, 1/2), whose 2.5% and 97.5% quantiles are 2 and 8; task b never
// varies.
TEST(Summary, BootstrapIntervals) {
    const Summary summary(results());
    const Column full{"full", "100%"}, ada{"adakv", "20%"};
    const Interval mean = summary.mean_interval(ada);
    EXPECT_DOUBLE_EQ(mean.low, (20 + 50) / 2.0);
    EXPECT_DOUBLE_EQ(mean.high, (80 + 50) / 2.0);
    const Interval constant = summary.mean_interval(full);
    EXPECT_DOUBLE_EQ(constant.low, 75);
    EXPECT_DOUBLE_EQ(constant.high, 75);
    const Interval itself = summary.difference(ada, ada);
    EXPECT_DOUBLE_EQ(itself.low, 0);
    EXPECT_DOUBLE_EQ(itself.high, 0);
}

// Breaks if a line that a kill cut off counts, a broken one passes, or writing and reading change a result.
TEST(Results, LinesAreReadBack) {
    const std::string path = ::testing::TempDir() + "holdfast-results.jsonl";
    SampleResult r = result("a", 3, "adakv", 0.1);
    r.answer = "\xE6\x9D\xB1 \"x\"\n";
    r.answers = {"y"};
    r.cache_bytes = std::size_t(5) << 32;
    const std::string line = result_line(r);
    std::ofstream(path) << line << line << result_line(result("a", 4, "adakv", 1)).substr(0, 40);
    const ResultFile file = read_results(path);
    ASSERT_EQ(file.results.size(), 1u);  // the second is the first again
    EXPECT_EQ(file.whole, 2 * line.size());
    EXPECT_EQ(result_line(file.results[0]), line);
    EXPECT_EQ(file.results[0].answer, r.answer);
    std::ofstream(path) << line << "{}\n";
    try {
        read_results(path);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("holdfast-results.jsonl:2"), std::string::npos);
    }
    EXPECT_TRUE(read_results(path + ".absent").results.empty());
}

// Breaks if what stays isn't the first and the last half of the prompt, or something fits and is cut.
TEST(Evaluation, MiddleIsCut) {
    for (const auto& [context, behind, room] : std::vector<std::array<std::size_t, 3>>{
             {100, 7, 50}, {100, 0, 51}, {60, 25, 51}, {60, 40, 51}, {10, 50, 51}}) {
        std::vector<int> tokens(context);
        std::iota(tokens.begin(), tokens.end(), 0);
        EXPECT_EQ(cut_middle(tokens, context, behind, room), context + behind - room);
        ASSERT_EQ(tokens.size() + behind, room);
        for (std::size_t i = 0; i < tokens.size(); ++i)
            EXPECT_EQ(std::size_t(tokens[i]), i < room - room / 2 ? i : i + context + behind - room);
    }
    std::vector<int> tokens(40);
    EXPECT_EQ(cut_middle(tokens, 40, 10, 50), 0u);
    EXPECT_EQ(cut_middle(tokens, 40, 50, 50), 0u);  // nothing of the question is ever cut
    EXPECT_EQ(tokens.size(), 40u);
}

// Breaks if a report's numbers aren't those of the summary, its pages need something from elsewhere, or a
// name escapes its text.
TEST(Report, NumbersAndPages) {
    std::vector<SampleResult> all = results();
    for (SampleResult& r : all)
        if (r.task == "b") r.task = "<b>|{{body}}</script>";
    const nlohmann::ordered_json manifest = {{"settings", {{"model", "tiny"}, {"question_aware", false}}},
                                             {"kv_heads", 2},
                                             {"version", "1"},
                                             {"machine", {{"threads", 2}}}};
    const Document document = evaluation_report(Summary(all), manifest);
    const std::string markdown = document.markdown(), html = document.html();
    for (const char* row :
         {"| a | 100.0 | 50.0 | **90.0** |", "| **mean of 2** | **75.0** | **50.0** | **70.0** |",
          "| 95% interval | 75.0 to 75.0 | 35.0 to 65.0 |", "| adakv | 20% | 33.3 |",
          "| critical-adakv | 20% | 6.7 |", "| 5.00 | adakv |",  // 33.3 / 6.7
          "| 0 | 30 | 30 |", "| 1 | 10 | 10 |",                  // kept shares: 60 and 20 of 200
          "| <b>\\|{{body}}</script> | 50.0 |", "| full | **+25.0 (+10.0 to +40.0)** |"})
        EXPECT_NE(markdown.find(row), std::string::npos) << row << "\n" << markdown;
    EXPECT_NE(html.find("<th>&lt;b&gt;|{{body}}&lt;/script&gt;</th><td>50.0</td>"), std::string::npos);
    EXPECT_NE(html.find("Chart.js"), std::string::npos);
    // A pair of method and budget that wasn't run isn't a zero.
    SampleResult other = result("a", 0, "critical-adakv", 1);
    other.budget = "40%";
    all.push_back(other);
    const std::string uneven = evaluation_report(Summary(all), manifest).markdown();
    EXPECT_NE(uneven.find("| critical-adakv | 40% | 0.0 |"), std::string::npos) << uneven;
    EXPECT_NE(uneven.find("Not every method"), std::string::npos);
    EXPECT_EQ(uneven.find("| 0.00 | adakv |"), std::string::npos);
    for (const char* outside : {"src=", "href=", "@import", "url(", "fetch("})
        EXPECT_EQ(html.substr(0, html.find("<script>")).find(outside), std::string::npos) << outside;
}

}  // namespace
}  // namespace holdfast
