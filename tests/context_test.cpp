// Reading and compressing contexts: what is kept, what it answers, what memory it takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "holdfast/error.hpp"
#include "base/memory.hpp"
#include "holdfast/holdfast.hpp"
#include "engine/context.hpp"
#include "engine/hidden_states.hpp"
#include "engine/session.hpp"
#include "kernels/simd.hpp"
#include "llama_reference.hpp"
#include "model/decoder_graph.hpp"
#include "model_files.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {
namespace {

using testing::RandomModel;
using testing::relative_difference;

std::vector<int> random_tokens(std::uint32_t count, int vocabulary, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int> tokens(count);
    for (int& token : tokens) token = int(random() % std::uint32_t(vocabulary));
    return tokens;
}

std::string small_model_path() {
    static const std::string path = [] {
        RandomModel model = testing::small_model();
        std::string file = testing::temporary_path("small.gguf");
        write_random_model(file, model);
        return file;
    }();
    return path;
}

ReadSettings budget(const char* text) {
    ReadSettings settings;
    settings.method = Method::parse("layer-defensive");
    settings.budget = Budget::parse(text);
    return settings;
}

std::vector<std::vector<std::uint32_t>> kept_positions(const RaggedCache& cache) {
    std::vector<std::vector<std::uint32_t>> all;
    for (int l = 0; l < cache.layers(); ++l)
        for (int h = 0; h < cache.kv_heads(); ++h) {
            const auto positions = cache.positions(l, h);
            all.emplace_back(positions.begin(), positions.end());
        }
    return all;
}

// Breaks if what is kept depends on how the work was cut: chunk sizes, threads, instruction sets.
TEST(Selection, DoesNotDependOnHowTheWorkIsCut) {
    const GgufModel model(small_model_path());
    const std::vector<int> tokens = random_tokens(700, model.parameters().vocabulary, 1);
    Compute one(1), two(2);
    for (const char* method : {"layer-defensive", "critical-adakv", "h2o+defensive+critical+ada",
                               "expected-attention+critical+layer", "keydiff+layer"}) {
        ReadSettings settings = budget("20%");
        settings.method = Method::parse(method);
        const auto expected = kept_positions(read_context(model, two, tokens, settings).cache);
        for (const std::uint32_t chunk : {64u, 512u, 700u, 33u}) {
            settings.chunk = chunk;
            EXPECT_EQ(kept_positions(read_context(model, one, tokens, settings).cache), expected)
                << method << ", chunks of " << chunk;
            EXPECT_EQ(kept_positions(read_context(model, two, tokens, settings).cache), expected)
                << method << ", chunks of " << chunk;
        }
        settings.chunk = 512;
        for (const SimdTarget& target : simd_targets()) {
            use_simd_target(target.name);
            EXPECT_EQ(kept_positions(read_context(model, two, tokens, settings).cache), expected)
                << method << " with " << target.name;
        }
        use_simd_target(simd_targets().front().name);
    }
}

// The same on the real model, whose layers are many enough for rounding to grow.
TEST(Selection, OfTheRealModelDoesNotDependOnHowTheWorkIsCut) {
    const GgufModel model(default_model_path());
    const std::vector<int> tokens = random_tokens(testing::sanitized ? 150 : 600, 40000, 2);
    ReadSettings settings = budget("20%");
    Compute one(1), two(2);
    const auto expected = kept_positions(read_context(model, two, tokens, settings).cache);
    for (const std::uint32_t chunk : {64u, 600u}) {
        settings.chunk = chunk;
        EXPECT_EQ(kept_positions(read_context(model, one, tokens, settings).cache), expected)
            << "chunks of " << chunk;
    }
    for (const SimdTarget& target : simd_targets()) {
        if (target.name == "SCALAR" || target.name == "EMU128")
            continue;  // takes minutes; the small model tries it
        use_simd_target(target.name);
        EXPECT_EQ(kept_positions(read_context(model, two, tokens, settings).cache), expected) << target.name;
    }
    use_simd_target(simd_targets().front().name);
}

// Breaks if a method keeps or answers otherwise when others look at the same reading, or memory isn't freed.
TEST(Selection, IsTheSameAloneAndBesideOthers) {
    const GgufModel model(small_model_path());
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    const std::vector<int> tokens = random_tokens(700, model.parameters().vocabulary, 1);
    std::vector<CompressionRequest> requests;
    for (const char* method : {"layer-defensive", "full", "critical-adakv", "h2o", "snapkv", "tova",
                               "expected-attention+critical+layer", "full", "defensive"})
        for (const char* budget : {"10%", "40%"})
            requests.push_back({Method::parse(method), Budget::parse(budget)});
    const auto logits = [&](const ReadContext& context) {
        TokenSession session(decoder, context.cache, 4096, {});
        const std::span<const float> result = session.read(std::vector<int>{3, 1, 4});
        return std::vector<float>(result.begin(), result.end());
    };
    const std::vector<ReadContext> together = read_contexts(model, compute, tokens, requests);
    ASSERT_EQ(together.size(), requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const ReadContext alone =
            read_context(model, compute, tokens, {requests[i].method, requests[i].budget});
        EXPECT_EQ(kept_positions(together[i].cache), kept_positions(alone.cache))
            << requests[i].method.name();
        EXPECT_EQ(together[i].last_hidden, alone.last_hidden);
        EXPECT_EQ(logits(together[i]), logits(alone)) << requests[i].method.name();
        EXPECT_EQ(together[i].report.kv_bytes, alone.report.kv_bytes);
    }
}

// Breaks if a short context or an extreme budget empties a head, misses the budget, drops the window, or
// ends in logits that aren't numbers.
TEST(Edges, ShortContextsAndExtremeBudgets) {
    const GgufModel model(small_model_path());
    const HyperParameters& p = model.parameters();
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    const std::size_t heads = std::size_t(p.layers * p.kv_heads);
    std::vector<std::uint32_t> lengths(40);
    std::iota(lengths.begin(), lengths.end(), 1u);
    for (const std::uint32_t more : {41u, 64u, 65u, 100u, 333u}) lengths.push_back(more);
    for (const std::uint32_t n : lengths)
        for (const char* text : {"1%", "10%", "33.3%", "50%", "99%", "100%", "1", "40"}) {
            const std::vector<int> tokens = random_tokens(n, p.vocabulary, n);
            const ReadSettings settings = budget(text);
            const ReadContext context = read_context(model, compute, tokens, settings);
            const std::string what = std::to_string(n) + " tokens at " + text;
            ASSERT_GE(context.report.kept_least, 1u) << what;
            const std::size_t wanted = settings.budget.entries(n, heads);
            if (wanted == n * heads || n <= settings.method.settings().window + 8) {
                ASSERT_EQ(context.cache.entries(), n * heads) << what;
                ASSERT_EQ(context.report.note.empty(), wanted == n * heads) << what;
            } else if (wanted < heads * settings.method.settings().window) {
                ASSERT_EQ(context.cache.entries(), heads * std::max<std::size_t>(1, wanted / heads)) << what;
                ASSERT_FALSE(context.report.note.empty()) << what;
                ASSERT_EQ(context.cache.positions(1, 1).back(), n - 1) << what;
            } else {
                ASSERT_EQ(context.cache.entries(), wanted) << what;
                for (int l = 0; l < p.layers; ++l)
                    for (int h = 0; h < p.kv_heads; ++h) {
                        const auto positions = context.cache.positions(l, h);
                        for (std::uint32_t i = 1; i <= settings.method.settings().window; ++i)
                            ASSERT_EQ(positions[positions.size() - i], n - i) << what;
                    }
            }
            TokenSession session(decoder, context.cache, 4096, {});
            for (const float logit : session.read(std::vector<int>{3, 1, 4}))
                ASSERT_TRUE(std::isfinite(logit)) << what;
        }
}

// Breaks if evicting next to nothing changes the answer: n, n - 1 and n - 16 tokens of n. Any change, however
// small, rounds the question's activations to other 8-bit codes, which moves this model's logits by 1.5
// to 2.2%; half of the tokens moves them by 8%.
TEST(Edges, BudgetsNextToEverythingAnswerAsTheFullCache) {
    const GgufModel model(default_model_path());
    const Tokenizer tokenizer(default_model_path());
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    std::string document;
    for (int i = 1; i <= (testing::sanitized ? 8 : 20); ++i)
        document += "Shelf " + std::to_string(i) + " holds " + std::to_string(i * i) + " jars. ";
    const Prompt prompt = tokenizer.prompt(document, "How many jars does shelf 7 hold?");
    std::vector<int> question = prompt.question;
    question.insert(question.end(), prompt.ending.begin(), prompt.ending.end());
    const auto logits = [&](const ReadSettings& settings) {
        const ReadContext context = read_context(model, compute, prompt.context, settings);
        TokenSession session(decoder, context.cache, 8192, {});
        const std::span<const float> result = session.read(question);
        return std::vector<float>(result.begin(), result.end());
    };
    const std::size_t n = prompt.context.size();
    const std::vector<float> full = logits({});
    EXPECT_EQ(logits(budget(std::to_string(n).c_str())), full);
    EXPECT_LE(relative_difference(logits(budget(std::to_string(n - 1).c_str())), full), 0.03f);
    EXPECT_LE(relative_difference(logits(budget(std::to_string(n - 16).c_str())), full), 0.05f);
}

// Breaks if a state loses more than fp16's rounding: by overflow, by sharing its scale with another token, by
// a scale that fp32 doesn't have; or if what isn't finite is hidden.
TEST(HiddenStates, AreKeptToElevenBits) {
    constexpr int width = 37;
    const float largest[] = {0.0f, 1e-40f, 1e-6f, 1.0f, 65504.0f, 1e7f, 3e38f};
    constexpr std::uint32_t tokens = std::size(largest);
    HiddenStates states(tokens, width);
    std::mt19937 random(1);
    std::vector<float> before(tokens * width);
    for (std::uint32_t t = 0; t < tokens; ++t)
        for (int i = 0; i < width; ++i)
            before[t * width + std::uint32_t(i)] =
                largest[t] * (float(i) / (width - 1)) * (random() % 2 == 0 ? 1.0f : -1.0f);
    for (std::uint32_t t = 0; t < tokens; ++t) {
        std::vector<float> state(before.begin() + t * width, before.begin() + (t + 1) * width);
        states.store(t, state.data());
    }
    std::vector<float> state(width);
    for (std::uint32_t t = 0; t < tokens; ++t) {
        states.load(t, state.data());
        for (int i = 0; i < width; ++i) {
            const float value = before[t * width + std::uint32_t(i)];
            EXPECT_LE(std::abs(double(state[std::size_t(i)]) - double(value)),
                      std::max(0x1p-11 * std::abs(double(value)), largest[t] < 1e-30f ? 1e-40 : 0.0))
                << largest[t] << " " << i;
        }
    }
    state.assign(width, 1);
    state[1] = INFINITY;
    state[2] = NAN;
    states.store(0, state.data());
    states.load(0, state.data());
    EXPECT_EQ(state[0], 1);
    EXPECT_EQ(state[1], INFINITY);
    EXPECT_TRUE(std::isnan(state[2]));
}

// Breaks if reading takes more than the plan's hidden states + one layer's scratch + budget and 15%: if
// the full cache ever existed, it alone would be three times that.
TEST(Memory, PeakStaysWithinThePlan) {
    if (testing::sanitized) GTEST_SKIP() << "the sanitizer keeps freed memory";
    const GgufModel model(default_model_path());
    Compute compute(2);
    const std::vector<int> tokens = random_tokens(6000, 40000, 3);
    const ReadContext context = read_context(model, compute, tokens, budget("20%"));
    const ReadReport& report = context.report;
    const HyperParameters& p = model.parameters();
    ASSERT_GT(report.peak_bytes, 0u);
    EXPECT_LE(double(report.peak_bytes), 1.15 * double(report.planned_peak_bytes));
    for (const char* method : {"h2o", "expected-attention", "critical-headkv"}) {
        ReadSettings settings = budget("20%");
        settings.method = Method::parse(method, std::string(method) == "critical-headkv"
                                                    ? std::vector<std::string>{"vnorm=gram"}
                                                    : std::vector<std::string>{});
        const ReadContext other = read_context(model, compute, std::span(tokens).first(3000), settings);
        EXPECT_LE(double(other.report.peak_bytes), 1.15 * double(other.report.planned_peak_bytes)) << method;
    }
    EXPECT_LT(report.planned_peak_bytes, report.kv_bytes_full);
    const CompressionRequest request{Method::parse("layer-defensive"), Budget::parse("20%")};
    const MemoryPlan plan = plan_memory(model, 6000, {&request, 1}, default_chunk, 2);
    // Kept: the plan to the entry, and at most one partly filled page a head.
    const std::size_t page = page_bytes(p.head_dim), heads = std::size_t(p.layers * p.kv_heads);
    EXPECT_GE(double(report.kv_bytes), 0.99 * double(plan.kv_kept));
    EXPECT_LE(double(report.kv_bytes), 1.01 * double(plan.kv_kept) + double(heads * page));
    printf("peak %.1f MiB, planned %.1f; kept %.1f MiB, planned %.1f, full %.1f\n",
           double(report.peak_bytes) / (1 << 20), double(report.planned_peak_bytes) / (1 << 20),
           double(report.kv_bytes) / (1 << 20), double(plan.kv_kept) / (1 << 20),
           double(report.kv_bytes_full) / (1 << 20));
}

// Breaks if a plan that can't fit is started, or the message names no remedy.
TEST(Memory, APlanThatDoesNotFitIsRefused) {
    MemoryPlan plan;
    plan.kv_kept = std::size_t(64) << 30;
    try {
        check_fits(plan, std::size_t(1) << 30);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("--budget"), std::string::npos);
    }
    EXPECT_NO_THROW(check_fits(plan, std::size_t(65) << 30));
    EXPECT_GT(available_memory(), 0u);
}

// Breaks if a question sees the one before it, or temperature sampling doesn't repeat with its seed.
TEST(Sessions, AreIndependentAndRepeatable) {
    const GgufModel model(small_model_path());
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    const std::vector<int> tokens = random_tokens(300, model.parameters().vocabulary, 8);
    const ReadContext context = read_context(model, compute, tokens, budget("30%"));
    const auto say = [&](std::vector<int> question, Sampling sampling) {
        TokenSession session(decoder, context.cache, 4096, sampling);
        std::vector<int> said;
        session.answer(session.read(question), 30, [&](int token) {
            said.push_back(token);
            return true;
        });
        return said;
    };
    const std::vector<int> alone = say({5, 6, 7}, {});
    say({9, 9}, {});
    EXPECT_EQ(say({5, 6, 7}, {}), alone);
    EXPECT_EQ(alone.size(), 30u);
    const Sampling warm{30.0f, 42};
    EXPECT_EQ(say({5, 6, 7}, warm), say({5, 6, 7}, warm));
    EXPECT_NE(say({5, 6, 7}, warm), say({5, 6, 7}, {30.0f, 43}));
}

// Breaks if a cancelled reading goes on.
TEST(Cancelling, StopsTheReading) {
    const GgufModel model(small_model_path());
    std::atomic<bool> cancel{false};
    Compute compute(2, [&] { return cancel.load(); });
    const std::vector<int> tokens = random_tokens(900, model.parameters().vocabulary, 8);
    int steps = 0;
    try {
        read_context(model, compute, tokens, {}, [&](const ReadProgress&) { cancel = ++steps == 2; });
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, Error::Kind::interrupted);
        EXPECT_EQ(steps, 2);
    }
}

}  // namespace
}  // namespace holdfast
