// What analyses measure, against plain double-precision sums over small random models and random heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "analyze/fragility.hpp"
#include "analyze/kept_attention.hpp"
#include "analyze/perturbation.hpp"
#include "engine/context.hpp"
#include "engine/session.hpp"
#include "llama_reference.hpp"
#include "model_files.hpp"

namespace holdfast {
namespace {

using testing::RandomModel;

// A small model with a context of 150 tokens, read with the full cache; two kept sets made by hand.
class Analysis : public ::testing::Test {
  protected:
    static std::string path() {
        static const std::string file = [] {
            RandomModel model = testing::small_model();
            model.gain = 3;
            std::string name = testing::temporary_path("analysis.gguf");
            write_random_model(name, model);
            return name;
        }();
        return file;
    }

    Analysis() : model(path()), compute(2), decoder(model, compute) {
        std::mt19937 random(3);
        std::vector<int> tokens(150);
        for (int& token : tokens) token = int(random() % 320);
        full = std::make_unique<ReadContext>(read_context(model, compute, tokens, {}));
        for (int set = 0; set < 2; ++set) {
            auto& cache = kept.emplace_back(full->cache);
            for (int l = 0; l < 3; ++l)
                for (int h = 0; h < 2; ++h) {
                    std::vector<std::uint32_t> slots;
                    for (std::uint32_t j = 0; j < 150; ++j)
                        if (random() % 10 < (set == 0 ? 2u : 6u) || j == 149) slots.push_back(j);
                    cache.retain(l, h, slots);
                }
        }
        kept.emplace_back(full->cache);
        for (const RaggedCache& cache : kept) pointers.push_back(&cache);
    }

    AnswerSetting setting(int steps) const {
        return {full->cache, pointers, question, steps, [](int) { return false; }, {}};
    }

    // Everything about one query, written down as it is defined.
    KeptAttention plain(const AnswerTrace& trace, std::size_t step, int layer, int head,
                        const RaggedCache& of) {
        const HyperParameters& p = model.parameters();
        const int kv = head / p.group(), d = p.head_dim;
        const std::uint32_t slots = trace.slot(step) + 1;
        const float* q = trace.query(step, layer) + head * d;
        std::vector<double> weights;
        double sum = 0, largest = -1e30;
        const auto entry = [&](std::uint32_t slot, bool value, int i) {
            const fp16_t* page = trace.cache().pages(layer, kv)[slot / 32];
            return double(fp16_to_fp32(value ? page_values(page, d)[int(slot % 32) * d + i]
                                             : page_keys(page)[i * 32 + int(slot % 32)]));
        };
        for (std::uint32_t j = 0; j < slots; ++j) {
            double score = 0;
            for (int i = 0; i < d; ++i) score += double(q[i]) * entry(j, false, i);
            weights.push_back(score * double(p.attention_scale));
            largest = std::max(largest, weights.back());
        }
        for (double& w : weights) sum += w = std::exp(w - largest);
        for (double& w : weights) w /= sum;
        std::vector<bool> is_kept(slots, false);
        for (std::uint32_t j : of.positions(layer, kv)) is_kept[j] = true;
        for (std::uint32_t j = trace.context_tokens(); j < slots; ++j) is_kept[j] = true;

        ExpandedLayer expanded;
        expanded.expand(model, layer, compute);
        const auto projected = [&](const std::vector<double>& x) {  // x W, W the head's slice
            std::vector<double> y(std::size_t(p.hidden));
            for (int o = 0; o < p.hidden; ++o)
                for (int i = 0; i < d; ++i)
                    y[std::size_t(o)] += x[std::size_t(i)] *
                                         double(expanded.output.panel(o / 32)[(head * d + i) * 32 + o % 32]);
            return y;
        };
        KeptAttention result;
        double context_mass = 0, kept_context = 0, all_norms = 0, kept_norms = 0;
        std::vector<double> output(std::size_t(p.hidden)), reduced(output);
        for (std::uint32_t j = 0; j < slots; ++j) result.mass += is_kept[j] ? weights[j] : 0;
        for (std::uint32_t j = 0; j < slots; ++j) {
            std::vector<double> value(std::size_t(d), 0.0);
            for (int i = 0; i < d; ++i) value[std::size_t(i)] = entry(j, true, i);
            const std::vector<double> y = projected(value);
            double norm = 0;
            for (std::size_t o = 0; o < y.size(); ++o) {
                norm += std::abs(y[o]);
                output[o] += weights[j] * y[o];
                if (is_kept[j]) reduced[o] += weights[j] / result.mass * y[o];
            }
            all_norms += weights[j] * norm;
            if (is_kept[j]) kept_norms += weights[j] * norm;
            if (j < trace.context_tokens()) {
                context_mass += weights[j];
                if (is_kept[j]) kept_context += weights[j];
            }
        }
        for (std::size_t o = 0; o < output.size(); ++o) {
            result.norm += std::abs(output[o]);
            result.distance += std::abs(output[o] - reduced[o]);
        }
        result.retained = kept_context / context_mass;
        result.bound = all_norms - (2 - 1 / result.mass) * kept_norms;
        return result;
    }

    GgufModel model;
    Compute compute;
    DecoderGraph decoder;
    std::unique_ptr<ReadContext> full;
    std::vector<RaggedCache> kept;  // a fifth, three fifths, everything
    std::vector<const RaggedCache*> pointers;
    std::vector<int> question = std::vector<int>(70, 17);  // more than is read at once
};

// Breaks if a weight, a sum, the projection or the renormalisation is wrong, answer tokens count as evicted,
// or a head gets another's slice; and if keeping everything isn't exact.
TEST_F(Analysis, HeadsEqualPlainSums) {
    AnswerTrace trace(model, decoder, full->cache, question, [](int) { return false; });
    ASSERT_TRUE(trace.advance(2));
    ASSERT_TRUE(trace.advance(3));  // its queries alone are there now
    ASSERT_EQ(trace.first_recorded(), 2u);
    int layers = 0;
    analyze_kept_attention(
        model, compute, trace, pointers, true, [&](int layer, std::span<const KeptAttention> values) {
            EXPECT_EQ(layer, layers++);
            ASSERT_EQ(values.size(), 3u * 3 * 6);
            for (std::size_t i = 0; i < values.size(); ++i) {
                const std::size_t set = i / 18, step = 2 + i / 6 % 3;
                const KeptAttention expected = plain(trace, step, layer, int(i % 6), kept[set]);
                EXPECT_NEAR(values[i].mass, expected.mass, 1e-5);
                EXPECT_NEAR(values[i].retained, expected.retained, 1e-5);
                EXPECT_NEAR(values[i].norm, expected.norm, 1e-5 * expected.norm);
                EXPECT_NEAR(values[i].distance, expected.distance, 1e-5 * expected.norm);
                EXPECT_NEAR(values[i].bound, expected.bound, 1e-5 * (expected.bound + expected.norm));
                EXPECT_LE(values[i].distance, values[i].bound + 1e-6 * values[i].norm);
                if (set < 2) {
                    EXPECT_GT(values[i].distance, 0);
                    continue;
                }
                EXPECT_EQ(values[i].distance, 0);
                EXPECT_EQ(values[i].mass, 1);
                EXPECT_EQ(values[i].retained, 1);
            }
        });
    EXPECT_EQ(layers, 3);
}

// Breaks if the bound is lower than what it bounds in any of ten thousand random heads, peaked and flat, with
// much and with little kept.
TEST(Bound, HoldsInRandomHeads) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    constexpr int d = 8, hidden = 40;
    double tightest = 0;
    for (int n = 0; n < 10000; ++n) {
        const std::size_t slots = 2 + random() % 40;
        const auto context = std::uint32_t(1 + random() % slots);
        const float sharpness = float(random() % 8);
        std::vector<float> weights(slots), values(slots * d), panels(PackedMatrix::elements(hidden, d)),
            norms(slots);
        float sum = 0;
        for (float& w : weights) sum += w = std::exp(sharpness * normal(random));
        for (float& w : weights) w /= sum;
        for (float& v : values) v = normal(random) + (n % 3 == 0 ? 2.0f : 0.0f);
        for (std::size_t i = 0; i < panels.size(); ++i)  // the last panel's missing outputs are 0
            panels[i] = i / (32 * d) == 1 && i % 32 >= hidden - 32 ? 0 : normal(random);
        const PackedMatrix output{panels.data(), hidden, d};
        for (std::size_t j = 0; j < slots; ++j)
            for (int o = 0; o < hidden; ++o) {
                float y = 0;
                for (int i = 0; i < d; ++i)
                    y += values[j * d + std::size_t(i)] * output.panel(o / 32)[i * 32 + o % 32];
                norms[j] += std::abs(y);
            }
        std::vector<std::uint32_t> kept;
        for (std::uint32_t j = 0; j < context; ++j)
            if (random() % 10 < 1 + unsigned(n) % 9) kept.push_back(j);
        if (kept.empty()) kept.push_back(0);
        HeadQuery query{weights, context, values.data(), norms.data(), &output, 0, d};
        const std::span<const std::uint32_t> set(kept);
        KeptAttention result;
        kept_attention(query, {&set, 1}, &result);
        ASSERT_LE(result.distance, result.bound * (1 + 1e-6) + 1e-5 * result.norm) << n;
        if (result.bound > 0) tightest = std::max(tightest, result.distance / result.bound);
    }
    EXPECT_GT(tightest, 0.9);  // and isn't merely large
}

// Breaks if means, minima or collapses aren't those of the steps, blocks of steps aren't joined, or evicted
// tokens are misnamed.
TEST_F(Analysis, FragilityIsThatOfTheSteps) {
    const int steps = 41;  // more than a block
    const FragilityAnalysis analysis = analyze_fragility(model, compute, decoder, setting(steps), 0.9);
    ASSERT_EQ(analysis.answer.size(), std::size_t(steps));
    AnswerTrace trace(model, decoder, full->cache, question, [](int) { return false; });
    trace.advance(steps);
    EXPECT_EQ(trace.tokens(), analysis.answer);
    std::vector<double> retained(3 * 6 * std::size_t(steps));  // of the first set: [layers, heads][steps]
    analyze_kept_attention(model, compute, trace, {pointers.data(), 1}, false,
                           [&](int layer, std::span<const KeptAttention> values) {
                               for (std::size_t i = 0; i < values.size(); ++i)
                                   retained[(std::size_t(layer) * 6 + i % 6) * std::size_t(steps) + i / 6] =
                                       values[i].retained;
                           });
    const Fragility& kept_fifth = analysis.kept[0];
    double least = 1, all = 0;
    int collapses = 0;
    for (std::size_t head = 0; head < 18; ++head) {
        const double* course = retained.data() + head * std::size_t(steps);
        double sum = 0, low = 1;
        for (int t = 0; t < steps; ++t) sum += course[t], low = std::min(low, course[t]);
        EXPECT_NEAR(kept_fifth.heads[head].mean, sum / steps, 1e-6);
        EXPECT_NEAR(kept_fifth.heads[head].least, low, 1e-6);
        EXPECT_NEAR(course[kept_fifth.heads[head].worst_step], low, 1e-6);
        int of_head = 0;
        for (int t = 0; t < steps; ++t) of_head += course[t] < 0.9 * sum / steps;
        EXPECT_NEAR(kept_fifth.heads[head].collapses, of_head, 1);  // one may lie on the border
        collapses += kept_fifth.heads[head].collapses;
        least = std::min(least, low);
        all += sum;
    }
    EXPECT_NEAR(kept_fifth.mean, all / 18 / steps, 1e-6);
    EXPECT_EQ(kept_fifth.collapses, collapses);
    EXPECT_GT(collapses, 0);
    const WorstPlace& worst = kept_fifth.worst_head;
    EXPECT_NEAR(worst.retained, least, 1e-6);
    EXPECT_NEAR(
        retained[std::size_t(worst.layer * 6 + worst.head) * std::size_t(steps) + std::size_t(worst.step)],
        least, 1e-6);
    // What is evicted and retained there makes up everything, and the first of it weighs most.
    ASSERT_FALSE(worst.evicted.empty());
    const auto kept_there = kept[0].positions(worst.layer, worst.head / 3);
    double shown = 0, before = 1;
    for (const EvictedToken& token : worst.evicted) {
        EXPECT_EQ(std::count(kept_there.begin(), kept_there.end(), token.position), 0);
        EXPECT_LE(token.mass, before);
        before = token.mass;
        shown += token.mass;
    }
    EXPECT_LE(shown, 1 - worst.retained + 1e-6);
    EXPECT_GT(shown, 0.3 * (1 - worst.retained));
    const auto low_step = std::min_element(kept_fifth.mean_by_step.begin(), kept_fifth.mean_by_step.end());
    EXPECT_EQ(kept_fifth.worst_step.step, low_step - kept_fifth.mean_by_step.begin());
    EXPECT_FALSE(kept_fifth.worst_step.evicted.empty());

    for (const HeadFragility& head : analysis.kept[2].heads) {  // everything is kept
        EXPECT_EQ(head.least, 1);
        EXPECT_EQ(head.collapses, 0);
    }
    EXPECT_LT(kept_fifth.mean, analysis.kept[1].mean);
}

// Breaks if an analysis changes the answer, heads' means aren't those of the steps, keeping everything moves
// a hidden state, or a hidden state is another layer's.
TEST_F(Analysis, PerturbationOfHeadsAndHiddenStates) {
    const int steps = 35;
    const PerturbationAnalysis analysis = analyze_perturbation(model, compute, decoder, setting(steps));
    TokenSession session(decoder, full->cache, model.parameters().context_length, {});
    std::vector<int> answer;
    const auto logits = session.read(question);
    session.answer(logits, steps, [&](int token) {
        answer.push_back(token);
        return true;
    });
    EXPECT_EQ(analysis.answer, answer);
    EXPECT_EQ(analysis.kept[2].mean(&HeadPerturbation::distance), 0);
    EXPECT_GT(analysis.kept[0].mean(&HeadPerturbation::relative),
              analysis.kept[1].mean(&HeadPerturbation::relative));
    EXPECT_GT(analysis.kept[1].mean(&HeadPerturbation::relative), 0);
    for (const Perturbation& kept_set : analysis.kept)
        for (const HeadPerturbation& head : kept_set.heads) {
            EXPECT_LE(head.distance, head.bound + 1e-6);
            EXPECT_GE(head.majority, 0);
            EXPECT_LE(head.majority, 1);
        }
    double by_steps = 0;
    for (double step : analysis.kept[0].relative_by_step) by_steps += step / steps;
    EXPECT_NEAR(by_steps, analysis.kept[0].mean(&HeadPerturbation::relative), 1e-9);
    for (int l = 0; l < 3; ++l) {
        EXPECT_EQ(analysis.kept[2].hidden[std::size_t(l)], 0);
        EXPECT_GT(analysis.kept[0].hidden_relative[std::size_t(l)], 0.001);
    }

    // A layer run alone turns what is recorded before it into what is recorded behind it.
    RaggedCache cache(full->cache), alone(full->cache);
    std::vector<float> hidden(3 * 96);
    const auto last = decoder.run({&question[0], 1}, cache, {.hidden = hidden.data()});
    const std::vector<float> logits_of_hidden = final_logits(model, compute, hidden.data() + 2 * 96);
    EXPECT_LT(testing::relative_difference(last, logits_of_hidden), 1e-5);
    LayerGraph graph(model, compute);
    ExpandedLayer weights;
    for (int l = 1; l < 3; ++l) {
        weights.expand(model, l, compute);
        std::vector<float> state(hidden.begin() + (l - 1) * 96, hidden.begin() + l * 96);
        graph.run(weights, l, state.data(), 1, 150, alone);
        EXPECT_LT(testing::relative_difference(
                      state, std::span<const float>(hidden).subspan(std::size_t(l) * 96, 96)),
                  1e-4);
    }
}

}  // namespace
}  // namespace holdfast
