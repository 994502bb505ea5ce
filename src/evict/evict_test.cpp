#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "holdfast/error.hpp"
#include "evict/allocators.hpp"
#include "holdfast/budget.hpp"
#include "evict/cascade.hpp"
#include "evict/critical.hpp"
#include "evict/window_attention.hpp"
#include "holdfast/method.hpp"

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
            std::vector<float> rescale, risk(past), sum(past);
            for (int r = 0; r < rows; ++r)
                rescale.push_back(pooled_rescale(attention.row(r).first(past), kernel));
            // In two parts, as threads do it, and then some rows after the others.
            const std::uint32_t middle = past / 2;
            const WindowAttention some{weights.data(), stride, 2, past, window},
                others{weights.data() + 2 * stride, stride, rows - 2, past, window};
            for (const auto& [begin, end] : {std::pair(0u, middle), std::pair(middle, past)}) {
                reduce_columns(some, rescale, kernel, begin, end, risk.data(), sum.data());
                reduce_columns(others, std::span(rescale).subspan(2), kernel, begin, end, risk.data(),
                               sum.data());
            }

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
                ASSERT_NEAR(sum[j] / rows, average[j], 1e-6);
            }
            EXPECT_NEAR(window_mass(attention, false), mass, 1e-6);
        }
}

// Breaks if the mass form's first stage secures too few or too many tokens, or writes another value than the
// highest.
TEST(Critical, FirstStageForcesTheFewestThatSecureTheMass) {
    const std::vector<float> risk = {.1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .9f};
    const std::vector<float> attention = {.30f, .25f, .20f, .10f, .05f, .02f, .02f, .02f, .02f, .02f};
    // .30 + .25 + .20 = .75 stays below 0.8, the fourth reaches it and isn't included.
    std::vector<float> scores = risk;
    secure_mass({scores, 1, 10, 0, 10}, attention, 0.8, 8);
    for (int j : {0, 1, 2, 9}) EXPECT_EQ(scores[std::size_t(j)], .9f) << j;
    for (int j : {3, 4, 5, 6, 7, 8}) EXPECT_EQ(scores[std::size_t(j)], .1f) << j;
    scores = risk;
    secure_mass({scores, 1, 10, 0, 10}, attention, 0.8, 2);
    EXPECT_EQ(scores[1], .9f);
    EXPECT_EQ(scores[2], .1f);
}

// Breaks if values of norm zero (no head adds anything) make scores that aren't numbers.
TEST(Critical, ZeroNormsStayFinite) {
    std::vector<float> scores(80, .1f);
    const std::vector<float> norms(80, 0);
    weigh_by_norms({scores, 2, 40, 0, 40}, norms);
    for (float score : scores) ASSERT_EQ(score, .1f);
}

// Breaks if the second stage takes what the first has, counts it, or goes by the score alone.
TEST(Critical, TwoStages) {
    const std::vector<float> scores = {5, 4, 3, 2, 1, 0}, norms = {1, 1, 1, 2, 9, 1000};
    using List = std::vector<std::uint32_t>;
    EXPECT_EQ(select_in_two_stages(scores, norms, 2, 1, 0), (List{0, 4}));
    EXPECT_EQ(select_in_two_stages(scores, norms, 4, 2, 0), (List{0, 1, 3, 4}));
    EXPECT_EQ(select_in_two_stages(scores, norms, 3, 3, 0), (List{0, 1, 2}));
    EXPECT_EQ(select_in_two_stages(scores, norms, 1, 0, 1), (List{5}));  // epsilon lifts a score of zero
}

// Breaks if HeadKV's shares miss the total, a limit, or proportion to the importance.
TEST(HeadKv, SharesByImportance) {
    std::mt19937 random(2);
    for (int round = 0; round < 500; ++round) {
        const std::size_t heads = 1 + random() % 40;
        const auto tokens = std::uint32_t(40 + random() % 1000), least = std::uint32_t(1 + random() % 33);
        const double each = std::max<double>(least, tokens * double(random() % 1000) / 1000);
        std::vector<double> importance(heads);
        double sum = 0;
        for (double& i : importance) sum += i = random() % 3 == 0 ? 0.0 : std::pow(2.0, double(random() % 8));
        if (sum == 0) importance[0] = sum = 1;
        for (double& i : importance) i /= sum;
        const std::vector<std::uint32_t> counts = share_by_importance(importance, tokens, each, least, 1.2);
        std::size_t total = 0;
        for (std::uint32_t count : counts) {
            ASSERT_GE(count, least);
            ASSERT_LE(count, tokens);
            total += count;
        }
        ASSERT_EQ(total, floor_count(each * double(heads)));
        // Heads within their limits have base + λ · importance, with the same λ.
        const double base = double(floor_count(each * (1 - 1 / 1.2)));
        for (std::size_t a = 0; a < heads; ++a)
            for (std::size_t b = 0; b < heads; ++b) {
                if (importance[a] >= importance[b]) {
                    ASSERT_GE(counts[a] + 1, counts[b]);
                }
                const auto within = [&](std::size_t i) {
                    return counts[i] > least + 1 && counts[i] + 1 < tokens && importance[i] > 0;
                };
                if (within(a) && within(b)) {
                    ASSERT_NEAR((counts[a] - base) * importance[b], (counts[b] - base) * importance[a],
                                1.01 * (importance[a] + importance[b]));
                }
            }
    }
    // Even importance is an even share, and the pool is what METHODS says: 1/6 of 60 fixed, 5/6 shared.
    EXPECT_EQ(share_by_importance(std::vector<double>{.5, .5}, 1000, 60, 1, 1.2),
              (std::vector<std::uint32_t>{60, 60}));
    EXPECT_EQ(share_by_importance(std::vector<double>{.75, .25}, 1000, 60, 1, 1.2),
              (std::vector<std::uint32_t>{85, 35}));
    EXPECT_EQ(share_by_importance(std::vector<double>{1, 0}, 100, 60, 1, 1.2),
              (std::vector<std::uint32_t>{100, 20}));
}

// Breaks if a composition means something else, or what makes no sense is accepted or refused without its
// reason.
TEST(Method, NamesAndRefusals) {
    EXPECT_EQ(Method::parse("snapkv").parts(), "snapkv+mean+uniform");
    EXPECT_EQ(Method::parse("critical-adakv").parts(), "snapkv+mean+critical+ada");
    EXPECT_EQ(Method::parse("critical-adakv").critical(), Critical::two_stage);
    EXPECT_EQ(Method::parse("layer-defensive").critical(), Critical::mass);
    EXPECT_EQ(Method::parse("h2o+defensive+critical+ada").parts(), "h2o+defensive+critical+ada");
    EXPECT_EQ(Method::parse("snapkv+critical+layer").critical(), Critical::mass);
    EXPECT_EQ(Method::parse("adakv", {"alpha=0.5", "window=8"}).settings().alpha, 0.5);
    EXPECT_EQ(Method::parse("critical-snapkv", {"mass=0.8", "form=mass"}).settings().mass, 0.8);
    EXPECT_TRUE(Method::parse("full").keeps_all());

    const auto refused = [](const std::string& name, const std::vector<std::string>& settings,
                            const std::string& word) {
        try {
            Method::parse(name, settings);
            ADD_FAILURE() << name << " was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, Error::Kind::usage);
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    };
    refused("magic", {}, "layer-defensive");
    refused("", {}, "snapkv");
    refused("snapkv+", {}, "unknown");
    refused("critical", {}, "scorer");
    refused("snapkv+tova", {}, "more than one scorer");
    refused("snapkv+ada+layer", {}, "more than one allocation");
    refused("snapkv+critical+critical", {}, "more than one refinement");
    refused("snapkv+mean+defensive", {}, "more than one aggregation");
    refused("full+ada", {}, "full");
    for (const char* scorer : {"knorm", "keydiff", "streaming", "random"}) {
        refused(scorer + std::string("+defensive"), {}, "worst case");
        refused(scorer + std::string("+critical"), {}, "attention");
    }
    refused("expected-attention+defensive", {}, "worst case");
    refused("streaming+layer", {}, "compare");
    refused("layer-defensive", {"form=two-stage"}, "form=mass");
    refused("full", {"window=8"}, "doesn't use");
    refused("tova", {"kernel=3"}, "doesn't use kernel");
    refused("snapkv", {"alpha=0.1"}, "doesn't use alpha");
    refused("layer-defensive", {"first-stage=0.4"}, "doesn't use first-stage");
    refused("snapkv", {"windows=8"}, "no parameter 'windows'");
    refused("snapkv", {"window"}, "name=value");
    for (const char* bad :
         {"window=0", "window=", "window=-1", "window=1.5", "window=9999999999999", "kernel=4", "kernel=0"})
        refused("snapkv", {bad}, "isn't a value of");
    refused("critical-snapkv", {"first-stage=1.5"}, "from 0 to 1");
    refused("critical-snapkv", {"first-stage=nan"}, "from 0 to 1");
    refused("layer-defensive", {"reference=yes"}, "on or off");
    refused("layer-defensive", {"vnorm=fast"}, "exact or gram");
}

// Breaks if --explain leaves a parameter out that can be set, or a default.
TEST(Method, Explains) {
    const std::string text = Method::parse("critical-adakv", {"alpha=0.3"}).explain();
    for (const char* line : {"snapkv+mean+critical+ada", "window=32 ", "kernel=5 ", "first-stage=0.5 ",
                             "epsilon=0.0001 ", "vnorm=exact ", "alpha=0.3 (default 0.2)", "form=two-stage "})
        EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
    EXPECT_EQ(text.find("mass="), std::string::npos);
    for (const NamedMethod& method : named_methods())
        EXPECT_FALSE(Method::parse(method.name).explain().empty());
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
            cascade.add_layer({all.data() + l * heads * past, heads * past},
                              [&](std::uint32_t layer, std::uint32_t head,
                                  std::span<const std::uint32_t> slots, std::uint32_t before) {
                                  auto& list = kept[layer * heads + head];
                                  EXPECT_EQ(list.size(), before);
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
