// Every kernel on every instruction set that this processor has, against a plain double-precision version,
// and against each other bit by bit.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pooling.hpp"
#include "kernels/quantized.hpp"
#include "kernels/simd.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {
namespace {

std::mt19937 random_engine(7);

std::vector<float> random_floats(std::size_t count, float deviation = 1) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_engine);
    return values;
}

// Keys and values of one head, in pages and as they were rounded.
struct Pages {
    int head_dim;
    std::vector<float> keys, values;  // [tokens, head_dim], fp16-exact
    std::vector<std::vector<fp16_t>> memory;
    std::vector<const fp16_t*> list;

    Pages(std::uint32_t tokens, int dim) : head_dim(dim) {
        keys = random_floats(tokens * std::size_t(dim));
        values = random_floats(tokens * std::size_t(dim));
        for (std::size_t i = 0; i < pages_for(tokens); ++i)
            // What lies behind the last token must not matter, as long as it is finite.
            memory.emplace_back(page_elements(dim), fp32_to_fp16(60000.0f));
        for (std::uint32_t t = 0; t < tokens; ++t)
            store_token(memory[t / page_tokens].data(), int(t % page_tokens), dim,
                        &keys[t * std::size_t(dim)], &values[t * std::size_t(dim)]);
        for (const auto& page : memory) list.push_back(page.data());
        for (float& x : keys) x = fp16_to_fp32(fp32_to_fp16(x));
        for (float& x : values) x = fp16_to_fp32(fp32_to_fp16(x));
    }
};

// softmax(q · K[first..visible)) · V in double precision, scores capped if soft_cap isn't 0.
std::vector<double> plain_attention(const Pages& pages, const float* query, std::uint32_t first,
                                    std::uint32_t visible, double soft_cap) {
    std::vector<double> weights(visible);
    double maximum = -INFINITY, sum = 0;
    const auto dim = std::size_t(pages.head_dim);
    for (std::uint32_t t = first; t < visible; ++t) {
        for (std::size_t i = 0; i < dim; ++i)
            weights[t] += double(query[i]) * double(pages.keys[t * dim + i]);
        if (soft_cap > 0) weights[t] = soft_cap * std::tanh(weights[t] / soft_cap);
        maximum = std::max(maximum, weights[t]);
    }
    for (std::uint32_t t = first; t < visible; ++t) sum += weights[t] = std::exp(weights[t] - maximum);
    std::vector<double> output(dim);
    for (std::uint32_t t = 0; t < visible; ++t)
        for (std::size_t i = 0; i < dim; ++i)
            output[i] += weights[t] / sum * double(pages.values[t * dim + i]);
    return output;
}

struct Shape {
    int rows;
    int head_dim;
    std::uint32_t tokens;
};

// Runs attend() in ranges of `range` slots and combines them.
std::vector<float> run_attention(const Pages& pages, const Shape& shape, const std::vector<float>& queries,
                                 const std::vector<std::uint32_t>& visible, std::uint32_t range,
                                 const std::vector<std::uint32_t>& first = {}, float soft_cap = 0) {
    const std::size_t padded = std::size_t(padded_head_dim(shape.head_dim)), rows = std::size_t(shape.rows);
    std::vector<float> workspace(attention_workspace(shape.rows, shape.head_dim) + 16);
    std::vector<std::vector<float>> memory;
    std::vector<AttentionPartial> partials;
    for (std::uint32_t begin = 0; begin < shape.tokens; begin += range) {
        memory.emplace_back(rows * (padded + 2));
        float* base = memory.back().data();
        partials.push_back({base, base + rows * padded, base + rows * (padded + 1)});
        AttentionTask task;
        task.rows = shape.rows;
        task.head_dim = shape.head_dim;
        task.query = queries.data();
        task.visible = visible.data();
        if (!first.empty()) task.first = first.data();
        task.soft_cap = soft_cap;
        task.pages = pages.list.data();
        task.slot_begin = begin;
        task.slot_end = std::min(shape.tokens, begin + range);
        attend(task, partials.back(), workspace.data());
    }
    std::vector<float> output(rows * std::size_t(shape.head_dim));
    for (int r = 0; r < shape.rows; ++r)
        combine_partials(partials, r, shape.head_dim, output.data() + std::size_t(r * shape.head_dim));
    return output;
}

class EveryTarget : public ::testing::Test {
  protected:
    void TearDown() override { use_simd_target(simd_targets().front().name); }
};

// Breaks if a tile, a tail, the mask, a sliding window, the soft cap, the online softmax or the combination
// of splits is wrong, or if two instruction sets differ in a single bit.
TEST_F(EveryTarget, AttentionEqualsThePlainOne) {
    const Shape shapes[] = {{1, 64, 1},    {3, 64, 31},   {3, 64, 32},   {3, 64, 33},   {4, 128, 129},
                            {1, 40, 300},  {8, 80, 257},  {7, 16, 640},  {12, 64, 128}, {13, 64, 500},
                            {48, 64, 700}, {25, 96, 131}, {5, 256, 1000}};
    for (const Shape& shape : shapes) {
        const Pages pages(shape.tokens, shape.head_dim);
        const std::vector<float> queries = random_floats(std::size_t(shape.rows * shape.head_dim), 0.4f);
        std::vector<std::uint32_t> visible;
        for (int r = 0; r < shape.rows; ++r)
            visible.push_back(
                std::max<std::uint32_t>(1, shape.tokens - std::min(shape.tokens, std::uint32_t(5 * r))));
        for (const std::uint32_t range : {attention_block, 2 * attention_block, 8 * attention_block})
            for (const std::uint32_t window : {shape.tokens, 1u, 70u, 300u})
                for (const float soft_cap : {0.0f, 2.5f}) {
                    std::vector<std::uint32_t> first;  // of a sliding window
                    for (std::uint32_t end : visible) first.push_back(end - std::min(end, window));
                    std::vector<float> best;
                    for (const SimdTarget& target : simd_targets()) {
                        use_simd_target(target.name);
                        const std::vector<float> output =
                            run_attention(pages, shape, queries, visible, range, first, soft_cap);
                        if (best.empty()) best = output;
                        ASSERT_EQ(output, best) << target.name;
                    }
                    for (int r = 0; r < shape.rows; ++r) {
                        const auto row = std::size_t(r);
                        const std::vector<double> plain =
                            plain_attention(pages, queries.data() + r * shape.head_dim, first[row],
                                            visible[row], double(soft_cap));
                        for (int i = 0; i < shape.head_dim; ++i)
                            ASSERT_NEAR(best[std::size_t(r * shape.head_dim + i)], plain[std::size_t(i)],
                                        2e-5)
                                << shape.rows << " rows, head " << shape.head_dim << ", " << shape.tokens
                                << " tokens, row " << r << ", window " << window << ", cap " << soft_cap;
                    }
                }
    }
}

// Breaks if a row's result depends on which rows it was computed with: then what is kept would depend on
// the chunk size.
TEST_F(EveryTarget, ARowDoesNotDependOnItsNeighbours) {
    const Shape all{26, 64, 400};
    const Pages pages(all.tokens, all.head_dim);
    const std::vector<float> queries = random_floats(std::size_t(all.rows * all.head_dim));
    std::vector<std::uint32_t> visible;
    for (int r = 0; r < all.rows; ++r) visible.push_back(std::uint32_t(120 + 10 * r));
    for (const SimdTarget& target : simd_targets()) {
        use_simd_target(target.name);
        const std::vector<float> together = run_attention(pages, all, queries, visible, 1024);
        for (int r = 0; r < all.rows; ++r) {
            const std::vector<float> query(queries.begin() + r * 64, queries.begin() + (r + 1) * 64);
            const std::uint32_t seen = visible[std::size_t(r)];
            const std::vector<float> alone = run_attention(pages, {1, 64, seen}, query, {seen}, 1024);
            ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + r * 64))
                << target.name << " row " << r;
        }
    }
}

// Breaks if extreme scores overflow or vanish: softmax must stay finite and sum to one.
TEST_F(EveryTarget, SoftmaxOfExtremeScores) {
    for (const SimdTarget& target : simd_targets()) {
        use_simd_target(target.name);
        for (const std::uint32_t visible : {1u, 15u, 16u, 17u, 100u}) {
            std::vector<float> scores = random_floats(128, 2000);
            scores[0] = -1e30f;
            double maximum = -INFINITY, sum = 0;
            for (std::uint32_t i = 0; i < visible; ++i) maximum = std::max(maximum, double(scores[i]));
            std::vector<double> plain(128);
            for (std::uint32_t i = 0; i < visible; ++i)
                sum += plain[i] = std::exp(double(scores[i]) - maximum);
            softmax_row(scores.data(), visible, 128);
            for (std::uint32_t i = 0; i < 128; ++i)
                ASSERT_NEAR(scores[i], plain[i] / sum, 1e-6) << target.name;
        }
    }
}

// Breaks if a panel, a cut of the depth or the bias is wrong, or instruction sets differ.
TEST_F(EveryTarget, MatmulEqualsThePlainOne) {
    struct Case {
        int rows, inputs, outputs;
    };
    for (const auto& [rows, inputs, outputs] :
         {Case{1, 3, 1}, Case{7, 64, 33}, Case{13, 515, 64}, Case{100, 1100, 31}, Case{193, 96, 100}}) {
        const std::vector<float> a = random_floats(std::size_t(rows * inputs)),
                                 w = random_floats(std::size_t(outputs * inputs)),
                                 bias = random_floats(std::size_t(outputs));
        std::vector<float> panels(PackedMatrix::elements(outputs, inputs)), scratch(std::size_t(32 * inputs));
        const PackedMatrix packed{panels.data(), outputs, inputs};
        for (int i = 0; i < packed.panel_count(); ++i)
            pack_panel(
                panels.data(), i, outputs, inputs,
                [&, n = inputs](int row, float* to) { std::copy_n(w.data() + row * n, n, to); },
                scratch.data());
        std::vector<float> first;
        for (const SimdTarget& target : simd_targets()) {
            use_simd_target(target.name);
            std::vector<float> c(std::size_t(rows * outputs), NAN);
            const int middle = packed.panel_count() / 2;
            matmul(rows, a.data(), std::size_t(inputs), packed, 0, middle, bias.data(), c.data(),
                   std::size_t(outputs));
            matmul(rows, a.data(), std::size_t(inputs), packed, middle, packed.panel_count(), bias.data(),
                   c.data(), std::size_t(outputs));
            if (first.empty()) first = c;
            ASSERT_EQ(c, first) << target.name;
        }
        for (int r = 0; r < rows; ++r)
            for (int o = 0; o < outputs; ++o) {
                double sum = bias[std::size_t(o)];
                for (int k = 0; k < inputs; ++k)
                    sum += double(a[std::size_t(r * inputs + k)]) * double(w[std::size_t(o * inputs + k)]);
                ASSERT_NEAR(first[std::size_t(r * outputs + o)], sum, 2e-6 * inputs);
            }
    }
}

// Breaks if a code, a scale, an offset or a tail is read from the wrong place, if 16-bit sums overflow at the
// largest codes, or if instruction sets, row tiles or the division of groups change a single bit.
TEST_F(EveryTarget, QuantizedProductEqualsThePlainOne) {
    struct Case {
        int bits, rows, inputs, outputs;
        bool largest;
    };
    for (const auto& [bits, rows, inputs, outputs, largest] :
         {Case{4, 1, 32, 1, false}, Case{4, 3, 96, 17, false}, Case{4, 9, 576, 48, false},
          Case{4, 2, 64, 16, true}, Case{4, 26, 96, 20, false}, Case{8, 1, 32, 5, false},
          Case{8, 4, 160, 33, false}, Case{8, 2, 64, 16, true}, Case{8, 17, 64, 16, false}}) {
        QuantizedMatrix shape;
        shape.bits = bits, shape.inputs = inputs, shape.outputs = outputs;
        std::vector<std::byte> groups(shape.bytes());
        std::vector<double> weights(std::size_t(inputs * outputs));
        std::mt19937 random(7);
        for (int o = 0; o < outputs; ++o)
            for (int b = 0; b < inputs / 32; ++b) {
                QuantizedBlock block = {};
                block.scale = fp32_to_fp16(float(random() % 100) / 500 - 0.1f);
                block.offset = fp32_to_fp16(float(random() % 100) / 100 - 0.5f);
                for (int i = 0; i < 32; ++i) {
                    const int code = int(largest ? (1u << bits) - 1 : random() % (1u << bits));
                    if (bits == 8)
                        block.codes[i] = std::uint8_t(code);
                    else
                        block.codes[i % 16] = std::uint8_t(block.codes[i % 16] | code << (i < 16 ? 0 : 4));
                    weights[std::size_t(o * inputs + b * 32 + i)] =
                        double(fp16_to_fp32(block.scale)) * code + double(fp16_to_fp32(block.offset));
                }
                store_block(groups.data() + std::size_t(o / 16) * shape.group_bytes() +
                                std::size_t(b) * shape.block_bytes(),
                            bits, o % 16, block);
            }
        shape.groups = groups.data();
        std::vector<float> x = random_floats(std::size_t(rows * inputs));
        if (largest) std::fill(x.begin(), x.end(), -2.5f);
        const std::vector<float> bias = random_floats(std::size_t(outputs));
        for (const int rounded : {8, 15}) {  // bits of the rows
            std::vector<float> first;
            for (const SimdTarget& target : simd_targets()) {
                use_simd_target(target.name);
                std::vector<std::byte> memory(QuantizedRows::bytes(rows, inputs, rounded));
                const QuantizedRows quantized = QuantizedRows::at(memory.data(), rows, inputs, rounded);
                quantize_rows(rows, x.data(), std::size_t(inputs), quantized);
                std::vector<float> y(std::size_t(rows * outputs), NAN), alone(y);
                const int middle = shape.group_count() / 2;
                quantized_product(shape, 0, middle, rows, quantized, bias.data(), y.data(),
                                  std::size_t(outputs));
                quantized_product(shape, middle, shape.group_count(), rows, quantized, bias.data(), y.data(),
                                  std::size_t(outputs));
                if (first.empty()) first = y;
                ASSERT_EQ(y, first) << target.name;
                for (int r = 0; r < rows; ++r) {
                    quantize_rows(1, x.data() + r * inputs, std::size_t(inputs), quantized.from(r));
                    quantized_product(shape, 0, shape.group_count(), 1, quantized.from(r), bias.data(),
                                      alone.data() + r * outputs, std::size_t(outputs));
                }
                ASSERT_EQ(alone, first) << target.name;
            }
            const double steps = rounded == 8 ? 127 : 127 * 128;
            for (int r = 0; r < rows; ++r)
                for (int o = 0; o < outputs; ++o) {
                    double sum = bias[std::size_t(o)], rounding = 1e-5;
                    for (int b = 0; b < inputs / 32; ++b) {
                        double most = 0, size = 0;
                        for (int i = b * 32; i < b * 32 + 32; ++i) {
                            const double w = weights[std::size_t(o * inputs + i)],
                                         v = double(x[std::size_t(r * inputs + i)]);
                            sum += w * v;
                            size += std::abs(w);
                            most = std::max(most, std::abs(v));
                        }
                        rounding += size * (most / steps / 2 + 1e-6);  // half a step
                    }
                    ASSERT_NEAR(first[std::size_t(r * outputs + o)], sum, rounding)
                        << bits << " bits, " << inputs << ", rows of " << rounded;
                }
        }
    }
}

// Breaks if a neighbour, the tail of a row or a maximum is missed, or instruction sets differ.
TEST_F(EveryTarget, PooledRowsEqualThePlainOnes) {
    for (const int kernel : {1, 5, 7})
        for (const std::size_t count : {0u, 1u, 15u, 16u, 50u}) {
            const std::vector<float> row = random_floats(count + std::size_t(kernel)),
                                     before = random_floats(count);
            std::vector<float> first;
            for (const SimdTarget& target : simd_targets()) {
                use_simd_target(target.name);
                std::vector<float> most = before, sum = before;
                raise_to_pooled(row.data() + kernel / 2, count, kernel, 0.7f, most.data(), sum.data());
                for (std::size_t k = 0; k < count; ++k) {
                    double pooled = 0;
                    for (int i = 0; i < kernel; ++i) pooled += double(row[k + std::size_t(i)]) / kernel;
                    ASSERT_NEAR(most[k], std::max(double(before[k]), 0.7 * pooled), 1e-6);
                    ASSERT_EQ(sum[k], before[k] + row[k + std::size_t(kernel / 2)]);
                }
                if (first.empty()) first = most;
                ASSERT_EQ(most, first) << target.name;
            }
        }
}

// Breaks if any size of group, head or context that models have falls between the kernel's tiles.
TEST_F(EveryTarget, AttentionOfOneTokenAtAllSizes) {
    for (const int head_dim : {64, 80, 96, 128, 256})
        for (const std::uint32_t tokens : {1u, 31u, 33u, 127u, 129u, 1023u, 4097u}) {
            const Pages pages(tokens, head_dim);
            for (int group = 1; group <= 8; ++group) {
                const Shape shape{group, head_dim, tokens};
                const std::vector<float> queries = random_floats(std::size_t(group * head_dim), 0.2f);
                const std::vector<std::uint32_t> visible(std::size_t(group), tokens);
                std::vector<float> first;
                for (const SimdTarget& target : simd_targets()) {
                    if (tokens > 129 && target.name == simd_targets().back().name && group > 1) continue;
                    use_simd_target(target.name);
                    const std::vector<float> output = run_attention(pages, shape, queries, visible, 1024);
                    if (first.empty()) first = output;
                    ASSERT_EQ(output, first) << target.name << " " << head_dim << " " << tokens;
                }
                const int row = group - 1;
                const std::vector<double> plain =
                    plain_attention(pages, queries.data() + row * head_dim, 0, tokens, 0);
                for (int i = 0; i < head_dim; ++i)
                    ASSERT_NEAR(first[std::size_t(row * head_dim + i)], plain[std::size_t(i)], 2e-5)
                        << "group " << group << ", head " << head_dim << ", " << tokens << " tokens";
            }
        }
}

// Breaks if a query head's slice of the output projection or the mean over the group is wrong.
TEST_F(EveryTarget, ProjectedValueNormsEqualThePlainOnes) {
    const int hidden = 70, heads = 6, group = 3, first_head = 3;
    for (const int head_dim : {16, 40, 64}) {
        for (const std::uint32_t tokens : {1u, 13u, 32u}) {
            const Pages pages(tokens, head_dim);
            const int inputs = heads * head_dim;
            const std::vector<float> w = random_floats(std::size_t(hidden * inputs));
            std::vector<float> panels(PackedMatrix::elements(hidden, inputs)),
                scratch(std::size_t(32 * inputs));
            const PackedMatrix packed{panels.data(), hidden, inputs};
            for (int i = 0; i < packed.panel_count(); ++i)
                pack_panel(
                    panels.data(), i, hidden, inputs,
                    [&](int row, float* to) { std::copy_n(w.data() + row * inputs, inputs, to); },
                    scratch.data());
            std::vector<float> first;
            for (const SimdTarget& target : simd_targets()) {
                use_simd_target(target.name);
                std::vector<float> norms(tokens), workspace(std::size_t(32 * head_dim));
                projected_value_norms(pages.list[0], int(tokens), head_dim, packed, first_head, group,
                                      norms.data(), workspace.data());
                if (first.empty()) first = norms;
                ASSERT_EQ(norms, first) << target.name;
            }
            for (std::uint32_t t = 0; t < tokens; ++t) {
                double norm = 0;
                for (int h = first_head; h < first_head + group; ++h)
                    for (int o = 0; o < hidden; ++o) {
                        double sum = 0;
                        for (int i = 0; i < head_dim; ++i)
                            sum += double(pages.values[t * std::size_t(head_dim) + std::size_t(i)]) *
                                   double(w[std::size_t(o * inputs + h * head_dim + i)]);
                        norm += std::abs(sum) / group;
                    }
                ASSERT_NEAR(first[t], norm, 1e-5 * norm);
            }
        }
    }
}

// Breaks if an unknown name is accepted, or the error doesn't list the known ones.
TEST(Simd, RefusesAnUnknownTarget) {
    try {
        use_simd_target("ABACUS");
        FAIL();
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find(simd_targets().front().name), std::string::npos);
    }
}

}  // namespace
}  // namespace holdfast
