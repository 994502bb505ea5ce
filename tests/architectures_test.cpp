// Every architecture: logits against libllama on random models of it, and every eviction method on them.
// Prints the table of docs/models.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "holdfast/error.hpp"
#include "engine/context.hpp"
#include "engine/head_profile.hpp"
#include "engine/session.hpp"
#include "llama_reference.hpp"
#include "model/decoder_graph.hpp"
#include "model_files.hpp"
#include "plain_decoder.hpp"

namespace holdfast {
namespace {

using testing::LlamaReference;
using testing::RandomModel;
using testing::relative_difference;

std::vector<int> random_tokens(int count, int vocabulary, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int> tokens(std::size_t(count), 0);
    for (int& token : tokens) token = int(random() % std::uint32_t(vocabulary));
    return tokens;
}

struct Variant {
    std::string name;
    RandomModel model;
};

std::vector<Variant> variants() {
    std::vector<Variant> all;
    const auto add = [&](const std::string& architecture, const std::string& what, auto&& change) {
        RandomModel model;
        model.architecture = architecture;
        model.hidden = 128;
        model.heads = 4;
        model.kv_heads = 2;
        model.head_dim = 32;
        model.feed_forward = 192;
        model.layers = 3;
        model.seed = std::uint32_t(all.size() + 1);
        model.gain = 0.8f;
        change(model);
        // Where a token goes to one expert or another for a difference of rounding, logits are another's.
        if (model.experts > 0) model.gain = 0.3f;
        all.push_back({architecture + "_" + what, model});
    };
    const auto plain = [](RandomModel&) {};
    add("llama", "grouped", plain);
    add("llama", "long_rope", [](RandomModel& m) { m.long_rope = true; });
    add("llama", "fused_qkv", [](RandomModel& m) { m.fused = m.qkv_biases = true; });
    add("llama", "experts", [](RandomModel& m) { m.experts = 4; });
    add("llama", "one_expert_of_3",
        [](RandomModel& m) { m.experts = 3, m.experts_used = 1, m.tied = false; });
    add("qwen2", "qkv_biases", [](RandomModel& m) { m.qkv_biases = true; });
    add("qwen2", "multi_head", [](RandomModel& m) { m.qkv_biases = true, m.kv_heads = 4, m.tied = false; });
    add("qwen2", "yarn", [](RandomModel& m) { m.qkv_biases = true, m.rope_scaling = "yarn"; });
    add("qwen2moe", "shared_expert", [](RandomModel& m) {
        m.experts = 5, m.experts_used = 3, m.expert_feed_forward = 96, m.shared_feed_forward = 160,
        m.tied = false;
        m.qkv_biases = true;
    });
    add("qwen3", "grouped", plain);
    add("qwen3", "multi_query", [](RandomModel& m) { m.kv_heads = 1, m.tied = false, m.head_dim = 48; });
    add("qwen3moe", "experts", [](RandomModel& m) { m.experts = 8, m.expert_feed_forward = 64; });
    add("gemma2", "sliding", [](RandomModel& m) { m.sliding_window = 200, m.layers = 4; });
    add("gemma2", "multi_head", [](RandomModel& m) { m.sliding_window = 64, m.kv_heads = 4; });
    add("gemma3", "sliding", [](RandomModel& m) { m.sliding_window = 100, m.layers = 7; });
    add("gemma3", "period_3", [](RandomModel& m) {
        m.sliding_window = 33, m.sliding_period = 3, m.layers = 4, m.final_soft_cap = 20;
    });
    add("gemma3", "listed",
        [](RandomModel& m) { m.sliding_window = 130, m.sliding_list = true, m.kv_heads = 1; });
    add("gemma3", "scaled", [](RandomModel& m) {
        m.sliding_window = 100, m.sliding_period = 2, m.rope_scaling = "linear", m.layers = 4;
    });
    add("gemma3", "no_sliding", plain);
    add("phi3", "fused", [](RandomModel& m) { m.fused = true, m.tied = false; });
    add("phi3", "long_rope", [](RandomModel& m) { m.fused = m.long_rope = true, m.tied = false; });
    add("phi3", "unnamed_long_rope", [](RandomModel& m) {  // as older files are
        m.fused = m.long_rope = true, m.tied = false;
        m.more_keys = [](gguf_context* g) { gguf_remove_key(g, "phi3.rope.scaling.type"); };
    });
    add("phi3", "partly_rotated", [](RandomModel& m) { m.fused = true, m.rotated = 24; });
    add("smollm3", "unrotated_layers", [](RandomModel& m) { m.layers = 5; });
    add("olmo2", "grouped", [](RandomModel& m) { m.tied = false; });
    add("olmo2", "sliding", [](RandomModel& m) {
        m.tied = false, m.sliding_window = 150, m.layers = 5, m.rope_scaling = "yarn";
    });
    add("granite", "multipliers", plain);
    add("granite", "listed_kv_heads", [](RandomModel& m) {
        m.more_keys = [](gguf_context* g) {
            const std::uint32_t heads[] = {2, 2, 2};
            gguf_set_arr_data(g, "granite.attention.head_count_kv", GGUF_TYPE_UINT32, heads, 3);
        };
    });
    add("granite", "multi_query", [](RandomModel& m) { m.kv_heads = 1, m.biases = true; });
    add("granitemoe", "shared_expert", [](RandomModel& m) { m.experts = 4, m.shared_feed_forward = 64; });
    return all;
}

class Architectures : public ::testing::TestWithParam<Variant> {
  protected:
    static std::string path() {
        std::string file = testing::temporary_path(GetParam().name + ".gguf");
        write_random_model(file, GetParam().model);
        return file;
    }
};

// Breaks if any part of an architecture's decoder differs from libllama's. Prompts of less than a page, more
// than a page, and more than the sliding window, read whole and in chunks; behind each, 32 tokens are
// decoded.
TEST_P(Architectures, EqualLibllama) {
    const std::string file = path();
    const GgufModel model(file);
    Compute compute(1);  // two pools of threads would wait for each other
    DecoderGraph decoder(model, compute);
    LlamaReference reference(file, 2048, 1);
    float worst = 0;
    for (const int length : {1, 7, 130, 700}) {
        if (testing::sanitized && length == 130) continue;
        const std::vector<int> tokens =
            random_tokens(length + 32, GetParam().model.vocabulary, std::uint32_t(length));
        const std::span<const int> prompt(tokens.data(), std::size_t(length));
        reference.clear();
        const std::vector<float> expected = reference.decode(prompt);
        ReadSettings chunked;
        chunked.chunk = 97;
        ReadContext context = read_context(model, compute, prompt, chunked);
        EXPECT_LE(relative_difference(final_logits(model, compute, context.last_hidden.data()), expected),
                  1e-3f)
            << length << " tokens in chunks";
        ReadContext whole = read_context(model, compute, prompt, {});
        EXPECT_EQ(whole.last_hidden, context.last_hidden) << length << " tokens";
        TokenSession session(decoder, whole.cache, 4096, {});
        for (int i = 0; i < 32; ++i) {
            const std::span<const int> next(tokens.data() + length + i, 1);
            const float difference = relative_difference(session.read(next), reference.decode(next));
            worst = std::max(worst, difference);
            ASSERT_LE(difference, 1e-3f) << length << " tokens, step " << i;
        }
        // All at once, as a question is read.
        TokenSession together(decoder, whole.cache, 4096, {});
        TokenSession apart(decoder, whole.cache, 4096, {});
        std::span<const float> logits;
        const std::span<const int> question(tokens.data() + length, 32);
        for (int i = 0; i < 32; ++i) logits = apart.read(question.subspan(std::size_t(i), 1));
        const std::vector<float> one_by_one(logits.begin(), logits.end());
        // GELU goes through a table of fp16 values in ggml, which makes jumps of small differences.
        ASSERT_LE(relative_difference(together.read(question), one_by_one), 5e-4f);
    }
    fmt::print("| {} | {:.1e} |\n", GetParam().name, worst);
}

// Breaks if a method fails on an architecture, misses its budget there, touches a sliding layer or leaves it
// more than its window, or ends in logits that aren't numbers.
TEST_P(Architectures, EveryMethodRuns) {
    const GgufModel model(path());
    const HyperParameters& p = model.parameters();
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    const std::vector<int> tokens = random_tokens(400, p.vocabulary, 5);
    std::vector<std::string> methods = {"tova",
                                        "h2o",
                                        "knorm",
                                        "keydiff",
                                        "expected-attention",
                                        "streaming",
                                        "random",
                                        "h2o+defensive+critical+ada"};
    for (const NamedMethod& named : named_methods()) methods.push_back(named.name);
    HeadProfile profile{model.fingerprint(), p.name, p.layers, p.kv_heads, 5, {}};
    for (int i = 0; i < p.layers * p.kv_heads; ++i) profile.importance.push_back(1 + i % 3);
    const std::string profile_path = testing::temporary_path(GetParam().name + ".json");
    write_head_profile(profile, profile_path);
    for (const std::string& name : methods) {
        ReadSettings settings;
        settings.method = Method::parse(name);
        if (settings.method.needs_profile())
            settings.method = Method::parse(name, {"profile=" + profile_path});
        settings.budget = Budget::parse("25%");
        const ReadContext context = read_context(model, compute, tokens, settings);
        std::size_t kept = 0;
        for (int l = 0; l < p.layers; ++l)
            for (int h = 0; h < p.kv_heads; ++h) {
                const auto positions = context.cache.positions(l, h);
                if (p.slides(l)) {
                    ASSERT_EQ(positions.size(), std::min<std::size_t>(400, p.sliding_window)) << name;
                    ASSERT_EQ(positions.front(), 400 - positions.size()) << name;
                    ASSERT_EQ(positions.back(), 399u) << name;
                } else {
                    kept += positions.size();
                }
            }
        if (!settings.method.keeps_all()) {
            ASSERT_EQ(kept, std::size_t(100 * p.kv_heads * p.global_layers())) << name;
        }
        TokenSession session(decoder, context.cache, 4096, {});
        for (const float logit : session.read(std::vector<int>{3, 1, 4}))
            ASSERT_TRUE(std::isfinite(logit)) << name;
    }
}

// Breaks if decoding on a ragged cache differs from attention over everything with the evicted entries
// masked, or a token rotates by its slot instead of its position: the plain decoder knows no slots.
TEST_P(Architectures, RaggedEqualsMasked) {
    const GgufModel model(path());
    const HyperParameters& p = model.parameters();
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    std::vector<Rotation> rotations;
    for (int l = 0; l < p.layers; ++l) rotations.push_back(measure_rotation(model, compute, l));
    constexpr std::uint32_t n = 150;
    const std::vector<int> tokens = random_tokens(n + 20, p.vocabulary, 4);
    std::mt19937 random(9);
    for (const int kept_percent : {0, 30}) {
        ReadContext context = read_context(model, compute, std::span(tokens).first(n), {});
        std::vector<std::vector<bool>> kept;
        for (int l = 0; l < p.layers; ++l)
            for (int h = 0; h < p.kv_heads; ++h) {
                std::vector<std::uint32_t> slots;
                kept.emplace_back(n, false);
                for (std::uint32_t j = 0; j < n; ++j)
                    if (int(random() % 100) < kept_percent || j == (kept.size() * 17) % n)
                        slots.push_back(j), kept.back()[j] = true;
                if (!p.slides(l)) context.cache.retain(l, h, slots);
            }
        TokenSession session(decoder, context.cache, 4096, {});
        // A few together, then one by one, so that both ways of attention are taken.
        std::span<const float> logits = session.read(std::span(tokens).subspan(n, 13));
        for (std::uint32_t i = 13; i < 20; ++i) logits = session.read({&tokens[n + i], 1});
        const std::vector<float> plain =
            testing::plain_logits(model, rotations, tokens, [&](int layer, int head, int query, int key) {
                return query < int(n) || key >= int(n) ||
                       kept[std::size_t(layer * p.kv_heads + head)][std::size_t(key)];
            });
        EXPECT_LE(relative_difference(logits, plain), 1e-3f) << kept_percent << "% kept";
    }
}

INSTANTIATE_TEST_SUITE_P(All, Architectures, ::testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param.name; });

// Breaks if a scaling asked for reaches sliding layers, where libllama's doesn't.
TEST(RopeOptions, LeaveSlidingLayersAlone) {
    RandomModel shape;
    shape.architecture = "gemma2";
    shape.sliding_window = 64;
    shape.gain = 0.8f;
    const std::string file = testing::temporary_path("gemma2-scaled.gguf");
    write_random_model(file, shape);
    const GgufModel model(file, {0, "linear", 2});
    Compute compute(1);
    LlamaReference reference(file, 2048, 1, 2, "linear");
    const std::vector<int> tokens = random_tokens(300, shape.vocabulary, 2);
    ReadContext context = read_context(model, compute, tokens, {});
    EXPECT_LE(relative_difference(final_logits(model, compute, context.last_hidden.data()),
                                  reference.decode(tokens)),
              1e-3f);
}

// Breaks if a longer context isn't reached by growing the factor of a file that gives its scaled length
// alone.
TEST(RopeOptions, GrowWhatTheFileScales) {
    RandomModel shape;
    shape.rope_scaling = "linear";  // factor 4
    shape.more_keys = [](gguf_context* g) {
        gguf_remove_key(g, "llama.rope.scaling.original_context_length");
    };
    const std::string file = testing::temporary_path("linear-scaled.gguf");
    write_random_model(file, shape);
    EXPECT_EQ(GgufModel(file).parameters().rope.freq_scale, 0.25f);
    EXPECT_EQ(GgufModel(file, {8192, "", 0}).parameters().rope.freq_scale, 0.125f);  // 1024 originally
    EXPECT_EQ(GgufModel(file, {0, "", 16}).parameters().context_length, 16u * 1024);
    EXPECT_EQ(GgufModel(file, {0, "none", 0}).parameters().context_length, 1024u);
}

// Breaks if a file that lies about its sizes, or has what isn't handled, crashes or passes.
TEST(Refusals, OfFilesThatLieOrAskForMore) {
    const auto refused = [](RandomModel model, std::function<void(gguf_context*)> keys, const char* word) {
        model.more_keys = std::move(keys);
        const std::string file = testing::temporary_path("refused.gguf");
        write_random_model(file, model);
        try {
            GgufModel loaded(file);
            ADD_FAILURE() << word << " passed";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    };
    RandomModel llama, gemma, experts;
    gemma.architecture = "gemma3";
    gemma.sliding_window = 64;
    experts.experts = 2;
    using G = gguf_context*;
    refused(
        llama, [](G g) { gguf_set_val_u32(g, "llama.block_count", 1000000000); }, "layers");
    refused(
        llama, [](G g) { gguf_set_val_u32(g, "llama.attention.head_count", 7); }, "head");
    refused(
        llama, [](G g) { gguf_set_val_u32(g, "llama.rope.dimension_count", 1000); }, "rotation");
    refused(
        llama, [](G g) { gguf_set_val_u32(g, "llama.feed_forward_length", 0); }, "senseless");
    refused(
        llama, [](G g) { gguf_set_val_bool(g, "llama.attention.causal", false); }, "embedding model");
    refused(
        llama, [](G g) { gguf_set_val_u16(g, "split.count", 60000); }, "60000 parts");
    refused(
        llama, [](G g) { gguf_set_val_str(g, "llama.rope.scaling.type", "su"); }, "'su'");
    refused(
        llama, [](G g) { gguf_set_val_str(g, "general.architecture", "mamba"); }, "supported are");
    const std::uint32_t different[] = {2, 1};
    refused(
        llama,
        [&](G g) { gguf_set_arr_data(g, "llama.attention.head_count_kv", GGUF_TYPE_UINT32, different, 2); },
        "layer to layer");
    const char* words[] = {"a", "b"};
    refused(
        gemma, [&](G g) { gguf_set_arr_str(g, "gemma3.attention.sliding_window_pattern", words, 2); },
        "truth values");
    refused(
        gemma, [](G g) { gguf_set_val_u32(g, "gemma3.attention.key_length_swa", 16); }, "another size");
    refused(
        experts, [](G g) { gguf_set_val_u32(g, "llama.expert_used_count", 9); }, "9 of 2");
    refused(
        experts, [](G g) { gguf_set_val_u32(g, "llama.expert_group_count", 2); }, "groups of experts");
    experts.architecture = "qwen3";
    refused(experts, {}, "mixtures of experts");
    gemma.biases = true;
    gemma.architecture = "smollm3";
    gemma.rope_factors = true;
    gemma.long_rope = true;
    refused(gemma, {}, "rope_freqs");
}

}  // namespace
}  // namespace holdfast
