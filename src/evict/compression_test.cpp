// Every method on random layers, against the plain version (plain_method.hpp).
#include "evict/compression.hpp"

#include <gtest/gtest.h>

#include <random>

#include "base/fp16.hpp"
#include "evict/allocators.hpp"
#include "evict/observer.hpp"
#include "evict/plain_method.hpp"
#include "kernels/attention.hpp"
#include "kernels/simd.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {
namespace {

using testing::Doubles;
using testing::PlainLayer;

#ifdef __SANITIZE_ADDRESS__
constexpr int random_shapes = 300;
#else
constexpr int random_shapes = 10000;
#endif

// A layer in the forms that the kernels take.
struct PackedLayer {
    std::vector<std::vector<std::uint16_t>> pages;
    std::vector<std::vector<const fp16_t*>> addresses;
    std::vector<float> window_queries, output;
    std::vector<std::vector<float>> grams;
    std::vector<PackedMatrix> packed_grams;
    ObservedLayer observed;

    PackedLayer(const PlainLayer& plain, std::uint32_t window) {
        const LayerShape& s = plain.shape;
        const std::size_t d = std::size_t(s.head_dim);
        for (int h = 0; h < s.kv_heads; ++h) {
            addresses.emplace_back();
            for (std::uint32_t j = 0; j < s.tokens; ++j) {
                if (j % page_tokens == 0) pages.emplace_back(page_elements(s.head_dim));
                store_token(pages.back().data(), int(j % page_tokens), s.head_dim,
                            plain.k.data() + s.at(h, j) * d, plain.v.data() + s.at(h, j) * d);
                if (j % page_tokens == 0) addresses.back().push_back(pages.back().data());
            }
        }
        for (auto& list : addresses) observed.pages.push_back(list.data());
        for (int h = 0; h < s.heads(); ++h)
            for (std::uint32_t q = s.tokens - window; q < s.tokens; ++q) {
                const float* from = plain.q.data() + (q * std::size_t(s.heads()) + std::size_t(h)) * d;
                window_queries.insert(window_queries.end(), from, from + d);
            }
        const int inputs = s.heads() * s.head_dim;
        output.resize(PackedMatrix::elements(plain.hidden, inputs));
        std::vector<float> scratch(std::size_t(32) * std::size_t(inputs));
        const PackedMatrix projection{output.data(), plain.hidden, inputs};
        observed.output = [projection] { return projection; };
        for (int i = 0; i < projection.panel_count(); ++i)
            pack_panel(
                output.data(), i, plain.hidden, inputs,
                [&](int row, float* to) {
                    std::copy_n(plain.wo.data() + std::size_t(row) * std::size_t(inputs), inputs, to);
                },
                scratch.data());
        for (int h = 0; h < s.heads(); ++h) {
            grams.emplace_back(PackedMatrix::elements(s.head_dim, s.head_dim));
            pack_gram(projection, h, s.head_dim, grams.back().data());
            packed_grams.push_back({grams.back().data(), s.head_dim, s.head_dim});
        }
        observed.grams = packed_grams;
        observed.shape = s;
        observed.window = window;
        observed.window_queries = window_queries.data();
    }
};

// In order, or backwards in pieces as if by three threads: results must not depend on it.
ParallelFor serial(bool backwards) {
    return [backwards](int count, const std::function<void(int, int)>& task) {
        for (int i = 0; i < count; ++i) task(backwards ? count - 1 - i : i, backwards ? i % 3 : 0);
    };
}

struct Result {
    std::vector<std::vector<std::uint32_t>> kept;   // [layers · Hk]
    std::vector<std::vector<float>> scores, norms;  // [layers]; empty where nothing was to be chosen
    Forced forced;
    std::string note;
};

Result compress(const Method& method, const Budget& budget, const std::vector<PlainLayer>& layers,
                const std::vector<double>& importance, bool backwards = false) {
    const LayerShape& shape = layers.front().shape;
    Compression compression(method, budget, shape, importance);
    Observer observer(serial(backwards), 3);
    Result result{std::vector<std::vector<std::uint32_t>>(layers.size() * std::size_t(shape.kv_heads)),
                  {},
                  {},
                  compression.forced(),
                  compression.note()};
    for (std::size_t l = 0; l < layers.size(); ++l) {
        for (int h = 0; h < shape.kv_heads; ++h) {
            auto& list = result.kept[l * std::size_t(shape.kv_heads) + std::size_t(h)];
            list.resize(shape.tokens);
            std::iota(list.begin(), list.end(), 0u);
        }
        const PackedLayer packed(layers[l], compression.window_queries());
        observer.show(packed.observed);
        compression.begin_layer(layers[l].shape);
        if (compression.watches_queries()) {  // in two chunks
            const std::uint32_t cut = shape.tokens / 3;
            const std::size_t row = std::size_t(shape.heads()) * std::size_t(shape.head_dim);
            if (cut > 0) compression.watch(observer, {0, cut, layers[l].q.data()});
            compression.watch(observer, {cut, shape.tokens - cut, layers[l].q.data() + cut * row});
        }
        compression.finish_layer(observer, [&](int layer, int head, std::span<const std::uint32_t> slots) {
            auto& list = result.kept[std::size_t(layer * shape.kv_heads + head)];
            for (std::size_t i = 0; i < slots.size(); ++i) {
                ASSERT_TRUE(i == 0 || slots[i] > slots[i - 1]);
                ASSERT_LT(slots[i], list.size());
                list[i] = list[slots[i]];
            }
            list.resize(slots.size());
        });
        result.scores.emplace_back(compression.scores().begin(), compression.scores().end());
        if (method.critical() == Critical::two_stage && !result.scores.back().empty()) {
            const auto norms = observer.value_norms(method.settings().vnorm);
            result.norms.emplace_back(norms.begin(), norms.end());
        }
    }
    return result;
}

class RandomCase {
  public:
    explicit RandomCase(std::uint32_t seed) : random_(seed) {}

    std::uint32_t number(std::uint32_t least, std::uint32_t most) {
        return std::uint32_t(std::uniform_int_distribution<std::uint64_t>(least, most)(random_));
    }
    // Small ones more often, all of the range possible.
    std::uint32_t skewed(std::uint32_t least, std::uint32_t most) {
        const double exponent = std::uniform_real_distribution<double>(0, 1)(random_);
        return std::min(most, std::uint32_t(least * std::pow(double(most + 1) / least, exponent)));
    }
    Method method() {
        static const std::vector<std::string> names = [] {
            std::vector<std::string> all = {"tova",
                                            "h2o",
                                            "knorm",
                                            "keydiff",
                                            "streaming",
                                            "random",
                                            "knorm+ada",
                                            "keydiff+layer",
                                            "random+joint",
                                            "streaming+pyramid",
                                            "h2o+defensive+critical+ada",
                                            "tova+defensive",
                                            "snapkv+worst-case+joint",
                                            "h2o+worst-case+critical+ada",
                                            "tova+critical+layer",
                                            "snapkv+defensive",
                                            "h2o+critical",
                                            "snapkv+critical+joint",
                                            "snapkv+defensive+critical+pyramid",
                                            "knorm+headkv"};
            for (const NamedMethod& named : named_methods())
                if (named.name != "full") all.push_back(named.name);
            return all;
        }();
        const std::string& name = names[number(0, std::uint32_t(names.size() - 1))];
        const std::string usage = Method::parse(name).explain();
        std::vector<std::string> settings;
        const auto maybe = [&](const std::string& parameter, const std::string& value) {
            if (usage.find("\n  " + parameter + "=") != std::string::npos && number(0, 1) == 0)
                settings.push_back(parameter + "=" + value);
        };
        window_ = skewed(1, 64);
        if (usage.find("\n  window=") != std::string::npos)
            settings.push_back("window=" + std::to_string(window_));
        maybe("kernel", std::to_string(2 * number(0, 4) + 1));
        maybe("sinks", std::to_string(number(0, 6)));
        maybe("seed", std::to_string(number(0, 99)));
        maybe("alpha", std::to_string(number(0, 100) / 100.0));
        maybe("beta", std::to_string(number(100, 3000) / 100.0));
        maybe("first-stage", std::to_string(number(0, 100) / 100.0));
        maybe("mass", std::to_string(number(0, 100) / 100.0));
        maybe("reference", "on");
        maybe("vnorm", "gram");
        return Method::parse(name, settings);
    }
    // Few enough products for the plain version.
    std::vector<PlainLayer> layers(const Method& method) {
        LayerShape s;
        int hidden = 0;
        const bool watches = method.scorer().name == "h2o";
        while (true) {
            s.layers = int(number(1, 3));
            s.kv_heads = int(skewed(1, 8));
            s.group = int(skewed(1, 8));
            s.head_dim = int(2 * skewed(4, 128));
            s.tokens = skewed(1, 4096);
            hidden = int(skewed(8, 300));
            const double queries = watches ? s.tokens : window_;
            double products = queries * s.heads() * s.tokens * s.head_dim * s.layers;
            if (method.critical() != Critical::none)
                products += double(s.tokens) * s.heads() * s.head_dim * hidden * s.layers;
            if (products < 3e6) break;
        }
        s.scale = 1 / std::sqrt(float(s.head_dim));
        std::normal_distribution<float> normal;
        const float sharpness = float(skewed(1, 8));
        const auto fill = [&](std::vector<float>& to, std::size_t count, float factor, bool half) {
            to.resize(count);
            for (float& x : to) {
                x = normal(random_) * factor;
                if (half) x = fp16_to_fp32(fp32_to_fp16(x));
            }
        };
        std::vector<PlainLayer> layers(std::size_t(s.layers));
        for (int l = 0; l < s.layers; ++l) {
            PlainLayer& layer = layers[std::size_t(l)];
            layer.shape = s;
            layer.shape.layer = l;
            layer.hidden = hidden;
            const std::size_t d = std::size_t(s.head_dim);
            fill(layer.q, s.tokens * std::size_t(s.heads()) * d, sharpness, false);
            fill(layer.k, s.entries() * d, 1, true);
            fill(layer.v, s.entries() * d, 1, true);
            fill(layer.wo, std::size_t(hidden) * std::size_t(s.heads()) * d, 0.1f, false);
        }
        return layers;
    }
    Budget budget(std::uint32_t tokens) {
        if (number(0, 3) == 0) return {double(number(1, tokens)), false};
        return {number(1, 1000) / 1000.0, true};
    }
    std::vector<double> importance(std::size_t heads) {
        std::vector<double> shares(heads);
        double sum = 0;
        for (double& share : shares) sum += share = double(skewed(1, 1000));
        for (double& share : shares) share /= sum;
        return shares;
    }

  private:
    std::mt19937_64 random_;
    std::uint32_t window_ = 0;
};

// Breaks if a score differs from its formula by more than rounding; if from these scores another set is
// chosen than by sorting; if a budget isn't met exactly, a forced token is lost, or a head is empty.
TEST(Compression, EqualsThePlainVersionOnRandomShapes) {
    int chosen = 0, unsure_cases = 0;
    for (int index = 0; index < random_shapes; ++index) {
        RandomCase random{std::uint32_t(index)};
        const Method method = random.method();
        const std::vector<PlainLayer> layers = random.layers(method);
        const LayerShape& s = layers.front().shape;
        const Budget budget = random.budget(s.tokens);
        const std::size_t heads = layers.size() * std::size_t(s.kv_heads);
        const std::vector<double> importance = random.importance(heads);
        const Result result = compress(method, budget, layers, importance);
        SCOPED_TRACE("case " + std::to_string(index) + ": " + method.explain() + std::to_string(s.layers) +
                     " layers, " + std::to_string(s.kv_heads) + " × " + std::to_string(s.group) +
                     " heads of " + std::to_string(s.head_dim) + ", " + std::to_string(s.tokens) +
                     " tokens, budget " + std::to_string(budget.value));
        const double each = budget.tokens_per_head(s.tokens);
        const std::uint32_t forced = result.forced.count();
        std::size_t total = 0;
        for (const auto& list : result.kept) {
            ASSERT_GE(list.size(), 1u);
            total += list.size();
        }
        const std::size_t wanted = budget.entries(s.tokens, heads);
        if (wanted >= heads * s.tokens || s.tokens <= forced + 8) {
            ASSERT_EQ(total, heads * s.tokens);
            continue;
        }
        if (each < std::max(1u, forced)) {
            ASSERT_EQ(total, heads * std::max<std::size_t>(1, wanted / heads));
            for (const auto& list : result.kept) ASSERT_EQ(list.back(), s.tokens - 1);
            ASSERT_FALSE(result.note.empty());
            continue;
        }
        ++chosen;
        ASSERT_EQ(result.note, "");

        const std::string& allocator = method.allocator().name;
        if (allocator == "layer" || allocator == "headkv") {
            ASSERT_EQ(total, wanted);
        } else if (allocator == "joint") {
            ASSERT_EQ(total, layers.size() * floor_count(each * s.kv_heads));
        } else if (allocator != "pyramid") {
            ASSERT_EQ(total, heads * floor_count(each));
        }

        bool unsure = false;
        std::vector<Doubles> scores, norms;
        for (std::size_t l = 0; l < layers.size(); ++l) {
            const std::vector<float>& ours = result.scores[l];
            scores.emplace_back(ours.begin(), ours.end());
            if (!result.norms.empty()) norms.emplace_back(result.norms[l].begin(), result.norms[l].end());
            if (method.scorer().name == "random") continue;
            const Doubles plain = testing::plain_scores(layers[l], method, each, result.forced, unsure);
            double largest = 0;
            for (double x : plain) largest = std::max(largest, std::abs(x));
            for (int h = 0; h < s.kv_heads && !unsure; ++h)
                for (std::uint32_t j = result.forced.first; j < s.tokens - result.forced.last; ++j)
                    ASSERT_NEAR(ours[s.at(h, j)], plain[s.at(h, j)], 3e-5 * largest)
                        << "head " << h << " token " << j;
        }
        unsure_cases += unsure;
        for (std::size_t l = 0; l < norms.size() && s.tokens < 200; ++l)
            for (int h = 0; h < s.kv_heads; ++h)
                for (std::uint32_t j = 0; j < s.tokens; ++j) {
                    const double plain = layers[l].norm(h, j, method.settings().vnorm);
                    ASSERT_NEAR(norms[l][s.at(h, j)], plain, 1e-4 * plain + 1e-6);
                }
        std::vector<std::uint32_t> headkv;
        if (allocator == "headkv")
            headkv =
                share_by_importance(importance, s.tokens, each, std::max(1u, forced), method.settings().pool);
        const testing::PlainChoice choice =
            testing::plain_choice(method, s, each, result.forced, scores, norms, headkv);
        for (std::size_t h = 0; h < heads; ++h) {
            std::vector<std::uint32_t> expected;
            for (std::uint32_t j = 0; j < s.tokens; ++j)
                if (choice.kept[h][j]) expected.push_back(j);
            ASSERT_EQ(result.kept[h], expected) << "head " << h;
        }
    }
    printf("%d of %d cases left something to choose; in %d a threshold fell within rounding\n", chosen,
           random_shapes, unsure_cases);
    EXPECT_GT(chosen, random_shapes * 2 / 5);
    EXPECT_LT(unsure_cases, random_shapes / 20);
}

// Breaks if ties (equal keys and values many times over) are broken otherwise than by position, or what is
// kept depends on the instruction set or on the order in which tasks run.
TEST(Compression, TiesBreakTheSameEverywhere) {
    std::mt19937 random(4);
    std::vector<PlainLayer> layers(2);
    for (int l = 0; l < 2; ++l) {
        PlainLayer& layer = layers[std::size_t(l)];
        LayerShape& s = layer.shape;
        s.layer = l;
        s.layers = 2;
        s.kv_heads = 2;
        s.group = 3;
        s.head_dim = 40;
        s.tokens = 333;
        s.scale = 0.2f;
        layer.hidden = 50;
        const auto fill = [&](std::vector<float>& to, std::size_t count) {
            to.resize(count);
            for (float& x : to) x = float(int(random() % 3) - 1);
        };
        fill(layer.q, 333 * 6 * 40);
        fill(layer.wo, 50 * 6 * 40);
        std::vector<float> kinds;
        fill(kinds, 5 * 40);  // five different tokens
        for (std::size_t j = 0; j < s.entries(); ++j) {
            const std::size_t kind = random() % 5;
            layer.k.insert(layer.k.end(), kinds.begin() + std::ptrdiff_t(kind * 40),
                           kinds.begin() + std::ptrdiff_t(kind * 40 + 40));
        }
        layer.v = layer.k;
    }
    const std::vector<double> importance(4, 0.25);
    for (const char* name :
         {"snapkv", "tova", "h2o", "knorm", "keydiff", "streaming", "random", "adakv", "critical-adakv",
          "headkv", "defensive", "layer-defensive", "knorm+layer", "h2o+defensive+critical+ada"})
        for (const char* share : {"12.5%", "40%"}) {
            const std::string text = name;
            const bool refined = text.find("critical") != std::string::npos;
            const Method method = Method::parse(
                text, refined ? std::vector<std::string>{"vnorm=gram"} : std::vector<std::string>{});
            const Budget budget = Budget::parse(share);
            const Result expected = compress(method, budget, layers, importance);
            EXPECT_EQ(compress(method, budget, layers, importance, true).kept, expected.kept) << name;
            for (const SimdTarget& target : simd_targets()) {
                use_simd_target(target.name);
                EXPECT_EQ(compress(method, budget, layers, importance).kept, expected.kept)
                    << name << " with " << target.name;
            }
            use_simd_target(simd_targets().front().name);
        }
}

// Breaks if what one user computed is free for the next, counts twice for one, or counts for who computed it.
TEST(Observer, WhatIsBorrowedCountsOnce) {
    PlainLayer layer;
    LayerShape& s = layer.shape;
    s.layers = 1;
    s.kv_heads = 1;
    s.group = 2;
    s.head_dim = 32;
    s.tokens = 500;
    s.scale = 0.2f;
    layer.hidden = 64;
    layer.q.assign(500 * 64, 0.5f);
    layer.k.assign(500 * 32, 0.25f);
    layer.v = layer.k;
    layer.wo.assign(64 * 64, 0.1f);
    const PackedLayer packed(layer, 32);
    Observer observer(serial(false), 3);
    observer.show(packed.observed);
    observer.begin_user();
    observer.window(32, 5);
    observer.window(32, 5);
    observer.value_norms(ValueNorm::exact);
    EXPECT_EQ(observer.borrowed_seconds(), 0);
    observer.begin_user();
    EXPECT_EQ(observer.borrowed_seconds(), 0);
    observer.window(32, 5);
    const double attention = observer.borrowed_seconds();
    EXPECT_GT(attention, 0);
    observer.window(32, 5);
    observer.window(16, 5);  // its own
    EXPECT_EQ(observer.borrowed_seconds(), attention);
    observer.value_norms(ValueNorm::exact);
    EXPECT_GT(observer.borrowed_seconds(), attention);
    observer.begin_user();
    observer.window(32, 5);
    EXPECT_EQ(observer.borrowed_seconds(), attention);
}

// Breaks if query heads that are summarized one after the other, as a long context's are, count otherwise
// than together: twice, not at all, or with another's weight.
TEST(Observer, LongContextsAreSummarizedAsTheirQueryHeads) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    PlainLayer layer;
    LayerShape& s = layer.shape;
    s.layers = 1;
    s.kv_heads = 1;
    s.group = 3;  // 3 · 32 · 7,000 weights: two heads, then one
    s.head_dim = 8;
    s.tokens = 7000;
    s.scale = 0.5f;
    layer.hidden = 8;
    layer.q.resize(s.tokens * std::size_t(24));
    layer.k.resize(s.tokens * std::size_t(8));
    for (auto* values : {&layer.q, &layer.k})
        for (float& x : *values) x = normal(random);
    layer.v = layer.k;
    layer.wo.assign(8 * 24, 0.1f);
    const auto summary = [](const PlainLayer& of) {
        const PackedLayer packed(of, 32);
        Observer observer(serial(false), 3);
        observer.show(packed.observed);
        return observer.window(32, 5);
    };
    const WindowSummary together = summary(layer);
    WindowSummary apart{std::vector<float>(s.tokens), std::vector<float>(s.tokens), 0, 0};
    for (std::size_t g = 0; g < 3; ++g) {
        PlainLayer one = layer;
        one.shape.group = 1;
        one.wo.resize(8 * 8);
        one.q.resize(layer.k.size());
        for (std::size_t i = 0; i < one.q.size(); ++i) one.q[i] = layer.q[(i / 8 * 3 + g) * 8 + i % 8];
        const WindowSummary of_head = summary(one);
        for (std::size_t j = 0; j < s.tokens; ++j) {
            apart.mean[j] += of_head.mean[j] / 3;
            apart.worst[j] = std::max(apart.worst[j], of_head.worst[j]);
        }
        apart.mass += of_head.mass / 3;
        apart.reference_mass += of_head.reference_mass / 3;
    }
    for (std::size_t j = 0; j < s.tokens - 32; ++j) {
        ASSERT_NEAR(together.mean[j], apart.mean[j], 1e-5f * apart.mean[j]) << j;
        ASSERT_NEAR(together.worst[j], apart.worst[j], 1e-5f * apart.worst[j]) << j;
    }
    EXPECT_NEAR(together.mass, apart.mass, 1e-6 * apart.mass);
    EXPECT_NEAR(together.reference_mass, apart.reference_mass, 1e-6 * apart.reference_mass);
}

// Breaks if expected-attention isn't the softmax of expected logits under the queries' Gaussian: here all
// queries are alike before rotation and the future is one position long, so the covariance vanishes and the
// mean is the query rotated there.
TEST(ExpectedAttention, OfEqualQueriesIsTheirAttention) {
    std::mt19937 random(8);
    std::normal_distribution<double> normal;
    for (const bool neighbours : {true, false}) {
        Rotation rotation{{1.0, 0.3, 0.01}, neighbours, 1.25};
        PlainLayer layer;
        LayerShape& s = layer.shape;
        s.layers = 1;
        s.kv_heads = 2;
        s.group = 2;
        s.head_dim = 8;  // the last two dimensions aren't rotated
        s.tokens = 60;
        s.scale = 0.5f;
        s.rotation = &rotation;
        layer.hidden = 8;
        const auto rotate = [&](Doubles x, double position) {
            for (std::size_t i = 0; i < 3; ++i) {
                const std::size_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + 3;
                const double c = std::cos(position * rotation.frequencies[i]) * rotation.magnitude,
                             sn = std::sin(position * rotation.frequencies[i]) * rotation.magnitude;
                const double first = c * x[a] - sn * x[b], second = sn * x[a] + c * x[b];
                x[a] = first, x[b] = second;
            }
            return x;
        };
        std::vector<Doubles> base(4, Doubles(8));
        for (Doubles& query : base)
            for (double& x : query) x = normal(random);
        for (std::uint32_t t = 0; t < s.tokens; ++t)
            for (const Doubles& query : base)
                for (double x : rotate(query, t))
                    layer.q.push_back(float(t < 4 ? 100 : x));  // sinks are left out
        for (auto* to : {&layer.k, &layer.v})
            for (std::size_t i = 0; i < s.entries() * 8; ++i)
                to->push_back(fp16_to_fp32(fp32_to_fp16(float(normal(random)))));
        layer.wo.assign(8 * 32, 0.1f);
        for (const bool refined : {false, true}) {
            const Method method =
                Method::parse(refined ? "expected-attention+critical" : "expected-attention", {"future=1"});
            const Result result = compress(method, {0.5, true}, {layer}, {});
            Doubles expected(s.entries());
            for (int head = 0; head < 4; ++head) {
                const Doubles query = rotate(base[std::size_t(head)], s.tokens);
                Doubles weights(s.tokens);
                double sum = 0;
                for (std::uint32_t j = 4; j < s.tokens; ++j) {
                    double logit = 0;
                    for (std::size_t i = 0; i < 8; ++i)
                        logit += query[i] * double(layer.k[s.at(head / 2, j) * 8 + i]) * 0.5;
                    sum += weights[j] = std::exp(logit);
                }
                for (std::uint32_t j = 4; j < s.tokens; ++j) {
                    double length = 0;
                    for (std::size_t i = 0; i < 8; ++i)
                        length += std::pow(double(layer.v[s.at(head / 2, j) * 8 + i]), 2);
                    expected[s.at(head / 2, j)] += weights[j] / sum / 2 * (refined ? 1 : std::sqrt(length));
                }
            }
            for (int h = 0; h < 2; ++h)
                for (std::uint32_t j = 4; j < s.tokens; ++j)
                    ASSERT_NEAR(result.scores[0][s.at(h, j)], expected[s.at(h, j)], 1e-5) << h << " " << j;
            for (const auto& list : result.kept) {
                EXPECT_EQ(list.size(), 30u);
                for (std::uint32_t j = 0; j < 4; ++j) EXPECT_EQ(list[j], j);
            }
        }
    }
}

// Breaks if the covariance term is wrong: the mean over many sampled futures must come near the formula.
TEST(ExpectedAttention, CovarianceRaisesTokensAlongIt) {
    std::mt19937 random(9);
    std::normal_distribution<double> normal;
    Rotation rotation{{0.0, 0.0}, false, 1};  // no rotation: what remains is the Gaussian
    PlainLayer layer;
    LayerShape& s = layer.shape;
    s.layers = 1;
    s.kv_heads = 1;
    s.group = 1;
    s.head_dim = 4;
    s.tokens = 400;
    s.scale = 0.5f;
    s.rotation = &rotation;
    layer.hidden = 4;
    const double spread[] = {1.5, 0.2, 0.7, 0.0}, centre[] = {0.3, -0.5, 0.1, 0.4};
    for (std::uint32_t t = 0; t < s.tokens; ++t)
        for (int i = 0; i < 4; ++i) layer.q.push_back(float(centre[i] + spread[i] * normal(random)));
    for (auto* to : {&layer.k, &layer.v})
        for (std::size_t i = 0; i < s.entries() * 4; ++i)
            to->push_back(fp16_to_fp32(fp32_to_fp16(float(normal(random)))));
    layer.wo.assign(16, 1);
    const Method method = Method::parse("expected-attention+critical");
    const std::vector<float> scores = compress(method, {0.5, true}, {layer}, {}).scores[0];
    // Sample mean and covariance of the queries behind the sinks, expected weight up to the softmax's
    // divisor.
    Doubles mean(4), expected(s.tokens);
    double covariance[4][4] = {};
    const double count = s.tokens - 4;
    for (std::uint32_t t = 4; t < s.tokens; ++t)
        for (std::size_t i = 0; i < 4; ++i) mean[i] += layer.q[t * 4 + i] / count;
    for (std::uint32_t t = 4; t < s.tokens; ++t)
        for (std::size_t i = 0; i < 4; ++i)
            for (std::size_t j = 0; j < 4; ++j)
                covariance[i][j] += (layer.q[t * 4 + i] - mean[i]) * (layer.q[t * 4 + j] - mean[j]) / count;
    double sum = 0;
    for (std::uint32_t t = 4; t < s.tokens; ++t) {
        const float* key = layer.k.data() + t * 4;
        double logit = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            logit += mean[i] * double(key[i]) * 0.5;
            for (std::size_t j = 0; j < 4; ++j)
                logit += double(key[i]) * covariance[i][j] * double(key[j]) * 0.25 / 2;
        }
        sum += expected[t] = std::exp(logit);
    }
    for (std::uint32_t t = 4; t < s.tokens; ++t)
        ASSERT_NEAR(scores[t], expected[t] / sum, 1e-5 * expected[t] / sum + 1e-7) << t;
}

// Breaks if a scorer or allocator of one's own isn't called, is called with other shapes, or may break the
// rules of budgets.
TEST(Compression, TakesPartsOfOnesOwn) {
    struct Even final : Scorer {
        void score(LayerView& layer, std::span<float> importance) override {
            const LayerShape& s = layer.shape();
            for (std::size_t i = 0; i < s.entries(); ++i) importance[i] = i % s.tokens % 2 == 0 ? 1.0f : 0.0f;
        }
    };
    struct FirstHead final : Allocator {
        Allocation allocate(const LayerScores& layer) override {
            std::vector<std::uint32_t> tokens(std::size_t(layer.shape.kv_heads), 0);
            tokens[0] = 1000000;
            return {tokens, 0};
        }
    };
    ScorerPart scorer;
    scorer.name = "even";
    scorer.make = [](const ScorerContext&) { return std::make_unique<Even>(); };
    register_scorer(scorer);
    AllocatorPart allocator;
    allocator.name = "first-head";
    allocator.make = [](const AllocatorContext&) { return std::make_unique<FirstHead>(); };
    register_allocator(allocator);
    EXPECT_THROW(register_scorer(scorer), std::exception);

    RandomCase random(3);
    std::vector<PlainLayer> layers = random.layers(Method::parse("knorm"));
    while (layers.front().shape.tokens < 30 || layers.front().shape.kv_heads < 2)
        layers = random.layers(Method::parse("knorm"));
    const std::uint32_t n = layers.front().shape.tokens;
    for (const auto& list : compress(Method::parse("even"), {0.25, true}, layers, {}).kept) {
        ASSERT_EQ(list.size(), n / 4);
        for (std::uint32_t j = 0; j < list.size(); ++j) ASSERT_EQ(list[j], 2 * j);
    }
    const Result result = compress(Method::parse("even+first-head"), {0.25, true}, layers, {});
    EXPECT_EQ(result.kept[0].size(), n);
    EXPECT_EQ(result.kept[1].size(), 1u);
    EXPECT_THROW(Method::parse("even+critical"), std::exception);
}

}  // namespace
}  // namespace holdfast
