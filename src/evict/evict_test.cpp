#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.hpp"
#include "evict/budget.hpp"
#include "evict/cascade.hpp"
#include "evict/defensive.hpp"
#include "evict/window_attention.hpp"

namespace holdfast {
namespace {

// Breaks if a floor falls for the rounding of a product, or a token budget goes beyond the context.
TEST(Budget, Counts) {
    EXPECT_EQ(Budget::parse("20%").entries(1000, 1), 200u);
    EXPECT_EQ(Budget::parse("20%").entries(1705, 90), 30690u);
    EXPECT_EQ(Budget::parse("12.5%").entries(8, 3), 3u);
    EXPECT_EQ(Budget::parse("1024").entries(4096, 2), 2048u);
    EXPECT_EQ(Budget::parse("1024").entries(100, 2), 200u);
    EXPECT_EQ(Budget::everything().entries(77, 2), 154u);
}

// Breaks if one of these is taken for a budget.
TEST(Budget, RefusesWhatIsNone) {
    for (const char* text :
         {"", "%", "0%", "-5%", "101%", "0", "-3", "0.2", "20 %", "1e400", "nan", "ten", "20%%"})
        EXPECT_THROW(Budget::parse(text), Error) << text;
}

// Breaks if pooling, its edges, the rescaling, the maximum or the mean is off: everything by its definition.
TEST(Observation, EqualsItsDefinition) {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(0, 1);
    for (const std::uint32_t past : {1u, 2u, 4u, 5u, 9u, 40u, 133u})
        for (const int kernel : {1, 3, 5, 7}) {
            const std::uint32_t window = 4;
            const int rows = 6;
            const std::size_t stride = past + window + 3;
            std::vector<float> weights(stride * rows);
            for (float& x : weights) x = uniform(random);
            const WindowAttention attention{weights.data(), stride, rows, past, window};
            std::vector<float> rescale, risk(past), mean(past);
            for (int r = 0; r < rows; ++r)
                rescale.push_back(pooled_rescale(attention.row(r).first(past), kernel));
            const std::uint32_t middle = past / 2;  // in two parts, as threads do it
            reduce_columns(attention, rescale, kernel, 0, middle, risk.data(), mean.data());
            reduce_columns(attention, rescale, kernel, middle, past, risk.data(), mean.data());

            std::vector<double> worst(past), average(past);
            double mass = 0;
            for (int r = 0; r < rows; ++r) {
                std::vector<double> pooled(past);
                double before = 0, after = 0;
                for (int j = 0; j < int(past); ++j) {
                    for (int i = j - kernel / 2; i < j - kernel / 2 + kernel; ++i)
                        if (i >= 0 && i < int(past))
                            pooled[std::size_t(j)] += double(attention.row(r)[std::size_t(i)]) / kernel;
                    before += double(attention.row(r)[std::size_t(j)]);
                    after += pooled[std::size_t(j)];
                    average[std::size_t(j)] += double(attention.row(r)[std::size_t(j)]) / rows;
                }
                for (std::uint32_t j = 0; j < past; ++j)
                    worst[j] = std::max(worst[j], pooled[j] * before / after);
                for (std::uint32_t j = past; j < past + window; ++j)
                    mass += double(attention.row(r)[j]) / rows;
            }
            for (std::uint32_t j = 0; j < past; ++j) {
                ASSERT_NEAR(risk[j], worst[j], 1e-5) << past << " tokens, kernel " << kernel;
                ASSERT_NEAR(mean[j], average[j], 1e-6);
            }
            EXPECT_NEAR(window_mass(attention, false), mass, 1e-6);
        }
}

// Breaks if the first stage secures too few or too many tokens, or writes another value than the highest.
TEST(Defensive, FirstStageForcesTheFewestThatSecureTheMass) {
    DefensiveInput input;
    input.kv_heads = 1;
    input.past = 10;
    input.risk = {.1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .9f};
    input.mean_attention = {.30f, .25f, .20f, .10f, .05f, .02f, .02f, .02f, .02f, .02f};
    input.vnorm.assign(10, 1);
    input.window_mass = 0.1;
    DefensiveSettings settings;
    settings.window = 2;
    // Threshold 0.8: .30 + .25 + .20 = .75 stays below, the fourth reaches it and isn't included.
    DefensiveScores scores = defensive_scores(input, settings, 12);
    for (int j : {0, 1, 2, 9}) EXPECT_EQ(scores.past[std::size_t(j)], scores.highest) << j;
    for (int j : {3, 4, 5, 6, 7, 8}) EXPECT_LT(scores.past[std::size_t(j)], scores.highest) << j;
    // ⌊10 · 4.8/12⌋ - 2 = 2 at most.
    scores = defensive_scores(input, settings, 4.8);
    EXPECT_EQ(scores.past[1], scores.highest);
    EXPECT_LT(scores.past[2], scores.highest);
    // Nobody is safer than the average: the prior, (9 · 0.1 + 0.9) / 10.
    EXPECT_FLOAT_EQ(scores.past[5], 0.18f);
}

// Breaks if values of norm zero (no head adds anything) make scores that aren't numbers.
TEST(Defensive, ZeroNormsStayFinite) {
    DefensiveInput input{
        2, 40, std::vector<float>(80, .1f), std::vector<float>(80, .01f), std::vector<float>(80, 0), 0.2};
    const DefensiveScores scores = defensive_scores(input, {}, 36);
    for (float score : scores.past) ASSERT_TRUE(std::isfinite(score));
}

// Breaks if the cascade keeps another set than choosing from all layers at once, or breaks ties otherwise
// than by layer, head and position. Scores of few distinct values make many ties.
TEST(Cascade, EqualsTheChoiceFromAllLayersAtOnce) {
    std::mt19937 random(5);
    for (int round = 0; round < 300; ++round) {
        const auto layers = std::uint32_t(1 + random() % 5), heads = std::uint32_t(1 + random() % 4),
                   past = std::uint32_t(1 + random() % 60);
        const std::size_t total = layers * heads * past;
        const std::size_t capacity = random() % (total + 2);
        std::vector<float> all(total);
        for (float& score : all) score = float(random() % 12);

        std::vector<std::uint32_t> order(total);
        for (std::uint32_t i = 0; i < total; ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return all[a] > all[b]; });
        order.resize(std::min(capacity, total));
        std::sort(order.begin(), order.end());

        Cascade cascade(heads, capacity);
        std::vector<std::vector<std::uint32_t>> kept(layers * heads);
        std::size_t most = 0;
        for (std::uint32_t l = 0; l < layers; ++l) {
            for (std::uint32_t h = 0; h < heads; ++h)
                for (std::uint32_t j = 0; j < past; ++j)
                    kept[l * heads + h].push_back((l * heads + h) * past + j);
            cascade.add_layer(
                {all.data() + l * heads * past, heads * past},
                [&](std::uint32_t layer, std::uint32_t head, std::span<const std::uint32_t> slots) {
                    auto& list = kept[layer * heads + head];
                    for (std::size_t i = 0; i < slots.size(); ++i) list[i] = list[slots[i]];
                    list.resize(slots.size());
                });
            std::size_t now = 0;
            for (const auto& list : kept) now += list.size();
            most = std::max(most, now);
        }
        std::vector<std::uint32_t> ours;
        for (const auto& list : kept) ours.insert(ours.end(), list.begin(), list.end());
        ASSERT_EQ(ours, order);
        ASSERT_LE(most, capacity);  // after each layer no more than the budget is held
    }
}

}  // namespace
}  // namespace holdfast
