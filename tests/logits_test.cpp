// Logits against libllama on the same file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <random>

#include "holdfast/error.hpp"
#include "holdfast/holdfast.hpp"
#include "engine/context.hpp"
#include "engine/session.hpp"
#include "llama_reference.hpp"
#include "model/decoder_graph.hpp"
#include "model_files.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {
namespace {

using testing::LlamaReference;
using testing::RandomModel;
using testing::relative_difference;

constexpr int threads = 1;  // two pools of threads would wait for each other

std::vector<int> random_tokens(int count, int vocabulary, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int> tokens(std::size_t(count), 0);
    for (int& token : tokens) token = int(random() % std::uint32_t(vocabulary));
    return tokens;
}

struct Case {
    std::string name;
    RandomModel model;
};

std::vector<Case> exact_cases() {
    std::vector<Case> cases;
    const auto add = [&](const char* name, auto&& change) {
        RandomModel model;
        model.seed = std::uint32_t(cases.size() + 1);
        change(model);
        cases.push_back({name, model});
    };
    add("GroupedTied", [](RandomModel&) {});
    add("GroupedUntied", [](RandomModel& m) { m.tied = false; });
    add("MultiHead", [](RandomModel& m) { m.kv_heads = m.heads, m.layers = 3; });
    add("MultiQuery", [](RandomModel& m) { m.kv_heads = 1, m.layers = 4; });
    add("Biases", [](RandomModel& m) { m.biases = true; });
    add("RopeFactors", [](RandomModel& m) { m.rope_factors = true; });
    add("LinearScaling", [](RandomModel& m) { m.rope_scaling = "linear"; });
    add("YarnScaling", [](RandomModel& m) { m.rope_scaling = "yarn"; });
    add("OddSizes",
        [](RandomModel& m) { m.hidden = 200, m.head_dim = 80, m.feed_forward = 333, m.vocabulary = 517; });
    add("SmallHeads", [](RandomModel& m) { m.hidden = 96, m.head_dim = 16, m.heads = 8, m.kv_heads = 2; });
    return cases;
}

class ExactLogits : public ::testing::TestWithParam<Case> {};

// Breaks if any step of the decoder differs from libllama's: in an F32 file both compute the same numbers
// but for the order of sums and the rounding of K and V to fp16. Prompts are shorter and longer than a
// page, a chunk and a split; behind each, eight tokens are decoded.
TEST_P(ExactLogits, EqualLibllama) {
    const std::string path = testing::temporary_path(GetParam().name + ".gguf");
    write_random_model(path, GetParam().model);
    const GgufModel model(path);
    Compute compute(threads);
    DecoderGraph decoder(model, compute);
    LlamaReference reference(path, 2048, threads);
    for (const int length : {1, 7, 513, 2000}) {
        if (testing::sanitized && length > 600) continue;
        const std::vector<int> tokens =
            random_tokens(length + 8, GetParam().model.vocabulary, std::uint32_t(length));
        const std::span<const int> prompt(tokens.data(), std::size_t(length));
        ReadContext context = read_context(model, compute, prompt, {});
        reference.clear();
        EXPECT_LE(relative_difference(final_logits(model, compute, context.last_hidden.data()),
                                      reference.decode(prompt)),
                  1e-3f)
            << length << " tokens";
        TokenSession session(decoder, context.cache, 4096, {});
        for (int i = 0; i < 8; ++i) {
            const std::span<const int> next(tokens.data() + length + i, 1);
            ASSERT_LE(relative_difference(session.read(next), reference.decode(next)), 1e-3f)
                << length << " tokens, step " << i;
        }
        // All eight at once, as a question is read.
        TokenSession together(decoder, context.cache, 4096, {});
        TokenSession apart(decoder, context.cache, 4096, {});
        std::span<const float> logits;
        const std::span<const int> question(tokens.data() + length, 8);
        for (int i = 0; i < 8; ++i) logits = apart.read(question.subspan(std::size_t(i), 1));
        const std::vector<float> one_by_one(logits.begin(), logits.end());
        ASSERT_LE(relative_difference(together.read(question), one_by_one), 1e-4f);
    }
}

INSTANTIATE_TEST_SUITE_P(Llama, ExactLogits, ::testing::ValuesIn(exact_cases()),
                         [](const auto& test) { return test.param.name; });

// Breaks if a model in several files is read otherwise than in one, or a missing part isn't named.
TEST(SplitFiles, AreReadAsOne) {
    RandomModel shape;
    const std::string path = testing::temporary_path("whole.gguf");
    write_random_model(path, shape);
    const std::string first = testing::write_split_copy(path, "split", 4);
    Compute compute(threads);
    const GgufModel whole(path), split(first);
    const std::vector<int> tokens = random_tokens(50, shape.vocabulary, 1);
    EXPECT_EQ(read_context(whole, compute, tokens, {}).last_hidden,
              read_context(split, compute, tokens, {}).last_hidden);
    EXPECT_EQ(whole.fingerprint(), split.fingerprint());
    std::string second = first;
    second.replace(second.rfind("00001-of"), 5, "00002");
    try {
        GgufModel wrong(second);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("give the first"), std::string::npos);
    }
    std::filesystem::remove(second);
    try {
        GgufModel incomplete(first);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("00002-of-00004"), std::string::npos);
    }
}

// Breaks if a scaling that the file doesn't have is applied otherwise than libllama applies it.
TEST(RopeOptions, EqualLibllamas) {
    RandomModel shape;
    const std::string path = testing::temporary_path("unscaled.gguf");
    write_random_model(path, shape);
    Compute compute(threads);
    for (const char* scaling : {"linear", "yarn"}) {
        const GgufModel model(path, {0, scaling, 3});
        EXPECT_EQ(model.parameters().context_length, 3u * 4096);
        LlamaReference reference(path, 2048, threads, 3, scaling);
        const std::vector<int> tokens = random_tokens(700, shape.vocabulary, 6);
        ReadContext context = read_context(model, compute, tokens, {});
        EXPECT_LE(relative_difference(final_logits(model, compute, context.last_hidden.data()),
                                      reference.decode(tokens)),
                  1e-3f)
            << scaling;
    }
    EXPECT_EQ(GgufModel(path, {16384, "yarn", 0}).parameters().rope.freq_scale, 0.25f);
    for (const ModelOptions& bad :
         {ModelOptions{0, "ntk", 2}, ModelOptions{0, "yarn", 0}, ModelOptions{0, "none", 2},
          ModelOptions{0, "", 2}, ModelOptions{20000, "yarn", 2}})
        EXPECT_THROW(GgufModel(path, bad), Error) << bad.rope_scaling;
    shape.architecture = "phi3";
    shape.fused = shape.long_rope = true;
    shape.head_dim = 32;
    write_random_model(path, shape);
    EXPECT_THROW(GgufModel(path, {0, "yarn", 2}), Error);
}

// Breaks if a context beyond the file's own doesn't scale positions as libllama does with the same factor:
// 8192 tokens of originally 1024.
TEST(ExtendedContext, EqualsLibllamaWithTheSameFactor) {
    for (const char* scaling : {"linear", "yarn"}) {
        RandomModel shape;
        shape.rope_scaling = scaling;
        const std::string path = testing::temporary_path(std::string(scaling) + "-extended.gguf");
        write_random_model(path, shape);
        const GgufModel model(path, {8192, "", 0});
        Compute compute(threads);
        LlamaReference reference(path, 2048, threads, 8);
        const std::vector<int> tokens = random_tokens(700, shape.vocabulary, 6);
        ReadContext context = read_context(model, compute, tokens, {});
        EXPECT_LE(relative_difference(final_logits(model, compute, context.last_hidden.data()),
                                      reference.decode(tokens)),
                  1e-3f)
            << scaling;
    }
    RandomModel plain;
    const std::string path = testing::temporary_path("not-extended.gguf");
    write_random_model(path, plain);
    EXPECT_THROW(GgufModel(path, {8192, "", 0}), Error);
}

class QuantisedLogits : public ::testing::TestWithParam<ggml_type> {};

// Breaks if a type is expanded wrongly. libllama rounds the inputs of its products to 8 bits (to fp16 with
// F16 weights), our prefill doesn't: it must lie nearer to the same weights' F32 result, and the two
// within the stated tolerance of each other.
TEST_P(QuantisedLogits, LieNearerToTheExactResultThanLibllamas) {
    const ggml_type few[] = {GGML_TYPE_F16, GGML_TYPE_Q4_1, GGML_TYPE_Q4_K};
    if (testing::sanitized && std::ranges::count(few, GetParam()) == 0)
        GTEST_SKIP() << "the code is the same for all types";
    RandomModel shape;
    shape.heads = 12;  // GQA 3:1, and rows of 256 for the K-quants
    shape.kv_heads = 4;
    shape.layers = 3;
    shape.type = GetParam();
    const std::string name = ggml_type_name(shape.type);
    const std::string path = testing::temporary_path(name + ".gguf"),
                      exact_path = testing::temporary_path(name + "-exact.gguf");
    write_random_model(path, shape);
    testing::write_exact_copy(path, exact_path);
    const GgufModel model(path);
    Compute compute(threads);
    LlamaReference reference(path, 2048, threads), exact(exact_path, 2048, threads);
    DecoderGraph decoder(model, compute);
    float ours_worst = 0, llama_worst = 0, apart = 0;
    for (const int length : {1, 7, 513, 2000}) {
        if (testing::sanitized && length > 600) continue;
        const std::vector<int> all = random_tokens(length + 4, shape.vocabulary, std::uint32_t(length));
        const std::span<const int> tokens = std::span(all).first(std::size_t(length));
        ReadContext context = read_context(model, compute, tokens, {});
        const std::vector<float> ours = final_logits(model, compute, context.last_hidden.data());
        reference.clear();
        exact.clear();
        const std::vector<float> theirs = reference.decode(tokens), truth = exact.decode(tokens);
        // Decoding multiplies the weights as they are, or as they were laid out anew for the processor.
        TokenSession session(decoder, context.cache, 4096, {});
        for (const int& token : std::span(all).last(4))
            EXPECT_LE(relative_difference(session.read({&token, 1}), reference.decode({&token, 1})), 5e-2f)
                << length;
        ours_worst = std::max(ours_worst, relative_difference(ours, truth));
        llama_worst = std::max(llama_worst, relative_difference(theirs, truth));
        apart = std::max(apart, relative_difference(ours, theirs));
    }
    RecordProperty("ours", std::to_string(ours_worst));
    RecordProperty("libllama", std::to_string(llama_worst));
    printf("%s: from the exact logits: ours %.2e, libllama %.2e; from each other %.2e\n", name.c_str(),
           ours_worst, llama_worst, apart);
    EXPECT_LE(ours_worst, std::max(llama_worst, 1e-3f));
    EXPECT_LE(apart, 5e-2f);
}

INSTANTIATE_TEST_SUITE_P(Llama, QuantisedLogits,
                         ::testing::Values(GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K,
                                           GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
                                           GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_IQ3_S,
                                           GGML_TYPE_MXFP4, GGML_TYPE_TQ2_0),
                         [](const auto& test) { return std::string(ggml_type_name(test.param)); });

struct Real {
    std::string name, path;
    bool exact;  // compare with the weights in F32 too
    // How far apart logits may lie, of the largest one. Measured: SmolLM2's up to 0.11 in single steps,
    // because its few huge activations make 8-bit rounding coarse; Gemma's up to 0.03.
    float tolerance;
    int near_ties;  // at most, of 320 tokens
};

class RealModel : public ::testing::TestWithParam<Real> {};

// Breaks if greedy answers differ from libllama's for another reason than a near-tie: where the most likely
// tokens differ, libllama's own two best logits must lie within the tolerance. Breaks too if our logits
// aren't nearer to those of the same weights in F32 than libllama's are, on the average over the steps.
TEST_P(RealModel, GreedyTokensEqualLibllamas) {
    const auto& [name, path, with_exact, tolerance, most_near_ties] = GetParam();
    std::string exact_path = path;
    if (with_exact) {
        exact_path = testing::temporary_path("exact.gguf");
        testing::write_exact_copy(path, exact_path);
    }
    const GgufModel model(path);
    const Tokenizer tokenizer(path);
    Compute compute(threads);
    DecoderGraph decoder(model, compute);
    LlamaReference reference(path, 2048, threads);
    std::optional<LlamaReference> exact;
    if (with_exact) exact.emplace(exact_path, 2048, threads);
    std::string long_document;
    for (int i = 1; i <= (testing::sanitized ? 5 : 40); ++i)
        long_document += "On day " + std::to_string(i) + " the boat number " + std::to_string(i * 37 % 101) +
                         " left the harbour. ";
    const std::pair<std::string, std::string> prompts[] = {
        {"", "Why is the sky blue?"},
        {"", "Write a short poem about a lighthouse."},
        {"The library opens at nine and closes at six. On Sundays it stays closed.",
         "When does the library close?"},
        {"", "List three uses of copper."},
        {long_document, "Which boat left the harbour on day 7?"},
    };
    constexpr int steps = testing::sanitized ? 8 : 64;
    int near_ties = 0;
    float worst = 0;
    double ours_error = 0, llama_error = 0;
    for (const auto& [document, question] : prompts) {
        const Prompt prompt = tokenizer.prompt(document, question);
        std::vector<int> tokens = prompt.context;
        tokens.insert(tokens.end(), prompt.question.begin(), prompt.question.end());
        tokens.insert(tokens.end(), prompt.ending.begin(), prompt.ending.end());
        ReadContext context = read_context(model, compute, tokens, {});
        std::vector<float> ours = final_logits(model, compute, context.last_hidden.data());
        reference.clear();
        std::vector<float> theirs = reference.decode(tokens), truth = theirs;
        if (exact) {
            exact->clear();
            truth = exact->decode(tokens);
        }
        TokenSession session(decoder, context.cache, 8192, {});
        for (int i = 0; i < steps; ++i) {
            const auto best = std::max_element(theirs.begin(), theirs.end());
            const int next = int(best - theirs.begin());
            worst = std::max(worst, relative_difference(ours, theirs));
            ours_error += double(relative_difference(ours, truth)) / (steps * std::size(prompts));
            llama_error += double(relative_difference(theirs, truth)) / (steps * std::size(prompts));
            if (std::max_element(ours.begin(), ours.end()) - ours.begin() != next) {
                std::vector<float> sorted = theirs;
                std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
                EXPECT_LE(*best - sorted[1], tolerance * *best) << question << ", token " << i;
                ++near_ties;
            }
            const std::span<const float> logits = session.read({&next, 1});
            ours.assign(logits.begin(), logits.end());
            theirs = reference.decode({&next, 1});
            truth = exact ? exact->decode({&next, 1}) : theirs;
        }
    }
    printf(
        "%s: %d near-ties; logits at most %.2e apart; mean distance from F32: ours %.2e, libllama "
        "%.2e\n",
        name.c_str(), near_ties, worst, ours_error, llama_error);
    EXPECT_LE(near_ties, most_near_ties);
    EXPECT_LE(worst, tolerance);
    if (exact) {
        EXPECT_LE(ours_error, llama_error);
    }
}

std::vector<Real> real_models() {
    const std::string folder = std::filesystem::path(default_model_path()).parent_path().string();
    return {{"SmolLM2", default_model_path(), true, 0.15f, 16},
            {"Gemma3", folder + "/gemma-3-270m-q4_k_m.gguf", false, 0.15f, 16}};
}

INSTANTIATE_TEST_SUITE_P(All, RealModel, ::testing::ValuesIn(real_models()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace holdfast
