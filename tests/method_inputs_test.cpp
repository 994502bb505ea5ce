// What methods need beside the context: profiles of heads, Gram matrices, the model's fingerprint and
// rotation.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "analyze/profile_heads.hpp"
#include "holdfast/error.hpp"
#include "engine/context.hpp"
#include "engine/gram_store.hpp"
#include "engine/head_profile.hpp"
#include "holdfast/holdfast.hpp"
#include "kernels/vnorm.hpp"
#include "model/decoder_graph.hpp"
#include "model_files.hpp"

namespace holdfast {
namespace {

using testing::RandomModel;

std::string small_model(std::uint32_t seed) {
    RandomModel model;
    model.hidden = 96;
    model.heads = 6;
    model.head_dim = 16;
    model.feed_forward = 64;
    model.seed = seed;
    std::string path = testing::temporary_path("heads" + std::to_string(seed) + ".gguf");
    write_random_model(path, model);
    return path;
}

std::string refusal(const std::string& path, const GgufModel& model) {
    try {
        load_head_profile(path, model);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

// Breaks if two models of the same shape have the same fingerprint, or one model has two.
TEST(Fingerprint, TellsModelsApart) {
    const std::string first = small_model(1);
    EXPECT_EQ(GgufModel(first).fingerprint(), GgufModel(first).fingerprint());
    EXPECT_NE(GgufModel(first).fingerprint(), GgufModel(small_model(2)).fingerprint());
    EXPECT_EQ(GgufModel(first).fingerprint().size(), 16u);
}

// Breaks if a profile changes on its way through a file, is used for another model, or a broken one passes.
TEST(HeadProfile, IsKeptAndChecked) {
    const GgufModel model(small_model(1)), other(small_model(2));
    const HyperParameters& p = model.parameters();
    HeadProfile profile{model.fingerprint(), "a model", p.layers, p.kv_heads, 9, {0.5, 0.25, 0.125, 0.125}};
    const std::string path = testing::temporary_path("profile.json");
    write_head_profile(profile, path);
    const HeadProfile loaded = load_head_profile(path, model);
    EXPECT_EQ(loaded.prompts, 9);
    ASSERT_EQ(loaded.importance.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(loaded.importance[i], profile.importance[i], 1e-6);

    EXPECT_NE(refusal(path, other).find("another model"), std::string::npos);
    EXPECT_NE(refusal("", model).find("profile-heads"), std::string::npos);  // none is shipped for it
    EXPECT_NE(refusal(path + ".absent", model).find("cannot open"), std::string::npos);
    for (const char* text : {"", "{}", "[1, 2]", "{\"format\": \"holdfast-heads-2\"}",
                             "{\"format\": \"holdfast-heads-1\", \"fingerprint\": \"0\", \"model\": \"m\", "
                             "\"prompts\": 9, \"importance\": [[1, 2], [3]]}",
                             "{\"format\": \"holdfast-heads-1\", \"fingerprint\": \"0\", \"model\": \"m\", "
                             "\"prompts\": 9, \"importance\": [[1, -2]]}",
                             "{\"format\": \"holdfast-heads-1\", \"fingerprint\": \"0\", \"model\": \"m\", "
                             "\"prompts\": 9, \"importance\": [[0, 0]]}"}) {
        std::ofstream(path) << text;
        EXPECT_NE(refusal(path, model).find("no profile of heads"), std::string::npos) << text;
    }
    EXPECT_THROW(write_head_profile(profile, "/proc/nonexistent/profile.json"), Error);
}

// Breaks if the shipped profile isn't the default model's, or says nothing about its heads.
TEST(HeadProfile, OfTheDefaultModelComesAlong) {
    const GgufModel model(default_model_path());
    const HeadProfile profile = load_head_profile("", model);
    EXPECT_GE(profile.prompts, 20);
    ASSERT_EQ(profile.importance.size(), 90u);
    EXPECT_GT(*std::max_element(profile.importance.begin(), profile.importance.end()), 5.0 / 90);
}

// Breaks if a model that can't answer, or has no room for the prompts, gets a profile all the same.
TEST(HeadProfile, NeedsAnswers) {
    const Tokenizer tokenizer(default_model_path());
    Compute compute(2);
    EXPECT_THROW(profile_heads(GgufModel(default_model_path(), {300, "", 0}), tokenizer, compute, {}), Error);

    RandomModel ignorant;  // speaks the default model's vocabulary, and knows nothing
    ignorant.hidden = 32;
    ignorant.heads = 2;
    ignorant.kv_heads = 1;
    ignorant.head_dim = 16;
    ignorant.feed_forward = 32;
    ignorant.vocabulary = 49152;
    const std::string path = testing::temporary_path("ignorant.gguf");
    write_random_model(path, ignorant);
    ProfileSettings settings;
    settings.prompts = 20;
    settings.longest = 300;
    int done = 0;
    try {
        profile_heads(GgufModel(path), tokenizer, compute, settings,
                      [&](const ProfileProgress& p) { done = p.done; });
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("0 of 20 needle prompts"), std::string::npos)
            << error.what();
    }
    EXPECT_EQ(done, 20);
}

// Breaks if the matrices from the file differ from computed ones, an unfinished or foreign file is used, or a
// folder that can't be written to is an error.
TEST(GramStore, KeepsWhatItComputed) {
    const GgufModel model(small_model(1)), other(small_model(2));
    const HyperParameters& p = model.parameters();
    Compute compute(2);
    const std::string folder = testing::temporary_path("grams");
    const auto read = [&](const GgufModel& of, const std::string& where) {
        GramStore store(of, compute, where);
        std::vector<float> all;
        ExpandedLayer weights;
        for (int l = 0; l < p.layers; ++l) {
            for (const PackedMatrix& gram :
                 store.layer(l, [&] { return weights.expand_output(of, l, compute); }))
                all.insert(all.end(), gram.panels,
                           gram.panels + PackedMatrix::elements(p.head_dim, p.head_dim));
        }
        return all;
    };
    const std::string file = folder + "/" + model.fingerprint() + ".gram";
    {
        GramStore unfinished(model, compute, folder);
        ExpandedLayer weights;
        unfinished.layer(0, [&] { return weights.expand_output(model, 0, compute); });
    }
    EXPECT_FALSE(std::filesystem::exists(file));
    const std::vector<float> computed = read(model, folder);
    EXPECT_TRUE(std::filesystem::exists(file));
    EXPECT_EQ(read(model, folder), computed);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
    EXPECT_EQ(read(model, "/proc/nonexistent/folder"), computed);

    // A file of the same size that belongs to another model is not believed.
    read(other, folder);
    std::filesystem::copy_file(folder + "/" + other.fingerprint() + ".gram", file,
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(read(model, folder), computed);
    std::filesystem::resize_file(file, 5000);
    EXPECT_EQ(read(model, folder), computed);
    std::filesystem::remove_all(folder);
}

// Breaks if the measured rotation isn't the one that the model's queries go through: keys turned by it from
// position 0 must give the keys at other positions.
TEST(Rotation, IsTheModels) {
    for (const bool factors : {false, true})
        for (const char* scaling : {"", "linear", "yarn"}) {
            RandomModel random;
            random.rope_factors = factors;
            random.rope_scaling = scaling;
            random.layers = 1;
            const std::string path = testing::temporary_path("rotation.gguf");
            write_random_model(path, random);
            const GgufModel model(path);
            const HyperParameters& p = model.parameters();
            Compute compute(1);
            const Rotation rotation = measure_rotation(model, compute, 0);
            ASSERT_EQ(rotation.frequencies.size(), std::size_t(p.head_dim / 2));
            EXPECT_TRUE(rotation.neighbours);
            // The same token at every position: before rotation its keys are equal in the first layer.
            const std::vector<int> tokens(200, 7);
            const ReadContext context = read_context(model, compute, tokens, {});
            const auto key = [&](std::uint32_t position, std::size_t i) {
                return double(fp16_to_fp32(context.cache.pages(0, 0)[position / 32][i * 32 + position % 32]));
            };
            for (const std::uint32_t position : {1u, 2u, 50u, 199u})
                for (std::size_t i = 0; i < rotation.frequencies.size(); ++i) {
                    const double angle = position * rotation.frequencies[i];
                    const double x = key(0, 2 * i), y = key(0, 2 * i + 1);
                    const double tolerance = 3e-3 * (std::abs(x) + std::abs(y)) + 1e-3;
                    EXPECT_NEAR(key(position, 2 * i), x * std::cos(angle) - y * std::sin(angle), tolerance);
                    EXPECT_NEAR(key(position, 2 * i + 1), x * std::sin(angle) + y * std::cos(angle),
                                tolerance);
                }
        }
}

}  // namespace
}  // namespace holdfast
