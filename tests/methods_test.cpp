// All named methods on the default model: what they keep, how far they move the attention output, what they
// cost. Prints the table of docs/methods/README.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "analyze/kept_attention.hpp"
#include "holdfast/holdfast.hpp"
#include "engine/context.hpp"
#include "model_files.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {
namespace {

std::string example_document() {
    std::ifstream file(HOLDFAST_SOURCE_DIR "/examples/saltmere.txt");
    return {std::istreambuf_iterator<char>(file), {}};
}

// Breaks if the second stage of CriticalKV doesn't lower the perturbation that it is there to bound, if a
// method moves nothing or breaks its budget on a real model, or if keeping everything isn't exact.
TEST(Methods, OnTheDefaultModel) {
    if (testing::sanitized) GTEST_SKIP() << "takes an hour there; the methods are tested on random layers";
    const GgufModel model(default_model_path());
    const Tokenizer tokenizer(default_model_path());
    const HyperParameters& p = model.parameters();
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    Prompt prompt = tokenizer.prompt(example_document(), "Who is the director of the rope works?");
    ASSERT_GE(prompt.context.size(), 2048u);
    prompt.context.resize(2048);
    std::vector<int> question = tokenizer.tokenize("\n\n");
    question.insert(question.end(), prompt.question.begin(), prompt.question.end());
    question.insert(question.end(), prompt.ending.begin(), prompt.ending.end());

    const ReadContext full = read_context(model, compute, prompt.context, {});
    AnswerTrace trace(model, decoder, full.cache, question,
                      [&](int token) { return tokenizer.ends_answer(token); });
    trace.advance(32);
    ASSERT_GT(trace.steps(), 5u);
    // Mean over heads and steps of ‖o − o'‖₁.
    const auto moved_by = [&](const RaggedCache& cache) {
        const RaggedCache* kept = &cache;
        double sum = 0, count = 0;
        analyze_kept_attention(model, compute, trace, {&kept, 1}, true,
                               [&](int, std::span<const KeptAttention> values) {
                                   for (const KeptAttention& value : values) sum += value.distance;
                                   count += double(values.size());
                               });
        return sum / count;
    };
    EXPECT_EQ(moved_by(full.cache), 0);

    std::map<std::string, double> perturbation;
    fmt::print(
        "| method | perturbation | compression, % of prefill | kept of 2,048 tokens by layer "
        "|\n|---|---|---|---|\n");
    std::vector<std::pair<std::string, std::vector<std::string>>> methods;
    for (const NamedMethod& named : named_methods())
        if (named.name != "full") methods.push_back({named.name, {}});
    methods.push_back({"layer-defensive", {"vnorm=gram"}});
    for (const char* scorer :
         {"tova", "h2o", "knorm", "keydiff", "expected-attention", "streaming", "random"})
        methods.push_back({scorer, {}});
    for (const auto& [name, options] : methods) {
        ReadSettings settings;
        settings.method = Method::parse(name, options);
        settings.budget = Budget::parse("20%");
        const ReadContext context = read_context(model, compute, prompt.context, settings);
        const double moved = moved_by(context.cache);
        perturbation[name + (options.empty() ? "" : " " + options[0])] = moved;
        std::string kept;
        for (int l = 0; l < p.layers; ++l) {
            std::uint32_t sum = 0;
            for (int h = 0; h < p.kv_heads; ++h) sum += context.cache.length(l, h);
            kept += fmt::format("{}{}", l == 0 ? "" : " ", sum / std::uint32_t(p.kv_heads));
        }
        fmt::print("| {}{} | {:.1f} | {:.1f} | {} |\n", name, options.empty() ? "" : ", " + options[0], moved,
                   100 * context.report.compression_seconds / context.report.prefill_seconds, kept);
        EXPECT_GT(moved, 0) << name;
        EXPECT_NEAR(context.report.kept_mean, 409.6, 1.0) << name;
    }
    for (const char* base : {"snapkv", "adakv", "headkv"})
        EXPECT_LT(perturbation[std::string("critical-") + base], perturbation[base]);
    EXPECT_LT(perturbation["layer-defensive"], perturbation["random"]);
}

}  // namespace
}  // namespace holdfast
