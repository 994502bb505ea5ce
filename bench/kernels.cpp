// The kernels by themselves, beside the limits of the machine: the rate at which memory is read, and
// OpenBLAS's sgemm. Each runs in one thread and in as many at once as there are processors; rates are of all.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/memory.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "kernels/page.hpp"
#include "kernels/quantized.hpp"
#include "kernels/simd.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {
namespace {

constexpr std::size_t beyond_caches = std::size_t(512) << 20;  // of all threads together

std::vector<float> random_floats(std::size_t count) {
    std::mt19937 random(1);
    std::vector<float> values(count);
    for (float& value : values) value = float(random() % 2001) / 1000.0f - 1.0f;
    return values;
}

// Runs the same work in all threads at once, each with its own data; what is measured is until the last one
// ends.
template <class Make>
void measure(benchmark::State& state, const Make& make) {
    const int threads = int(state.range(0));
    std::vector<decltype(make())> work;
    for (int i = 0; i < threads; ++i) work.push_back(make());
    for (auto _ : state) {
        std::vector<std::thread> others;
        for (int i = 1; i < threads; ++i) others.emplace_back([&, i] { work[std::size_t(i)](); });
        work[0]();
        for (std::thread& other : others) other.join();
    }
}

// Of one thread's work.
void set_rate(benchmark::State& state, const char* unit, double amount) {
    state.counters[unit] = benchmark::Counter(amount * double(state.range(0)) / 1e9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
void set_bytes(benchmark::State& state, double bytes) {
    set_rate(state, "GB/s", bytes);
}
void set_operations(benchmark::State& state, double operations) {
    set_rate(state, "GFLOP/s", operations);
}

// The limit of what reads more than the caches hold.
void ReadMemory(benchmark::State& state) {
    const std::size_t bytes = beyond_caches / std::size_t(state.range(0));
    measure(state, [&] {
        auto buffer = std::make_shared<Buffer>(bytes);
        std::fill_n(buffer->as<std::uint64_t>(), bytes / 8, 1);
        return [=] {
            const auto* words = buffer->as<std::uint64_t>();
            std::uint64_t sums[32] = {};
            for (std::size_t i = 0; i < bytes / 8; i += 32)
                for (std::size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
            benchmark::DoNotOptimize(sums);
        };
    });
    set_bytes(state, double(bytes));
}

// The limit of what multiplies. rows × inputs × outputs.
void Sgemm(benchmark::State& state) {
    openblas_set_num_threads(1);
    const int rows = int(state.range(1)), inputs = int(state.range(2)), outputs = int(state.range(3));
    measure(state, [=] {
        return [=, a = random_floats(std::size_t(rows) * std::size_t(inputs)),
                b = random_floats(std::size_t(inputs) * std::size_t(outputs)),
                c = std::vector<float>(std::size_t(rows) * std::size_t(outputs))]() mutable {
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, outputs, inputs, 1, a.data(), inputs,
                        b.data(), inputs, 0, c.data(), outputs);
        };
    });
    set_operations(state, 2.0 * rows * inputs * outputs);
}

void Matmul(benchmark::State& state) {
    const int rows = int(state.range(1)), inputs = int(state.range(2)), outputs = int(state.range(3));
    measure(state, [=] {
        return [=, a = random_floats(std::size_t(rows) * std::size_t(inputs)),
                panels = random_floats(PackedMatrix::elements(outputs, inputs)),
                c = std::vector<float>(std::size_t(rows) * std::size_t(outputs))]() mutable {
            const PackedMatrix weights{panels.data(), outputs, inputs};
            matmul(rows, a.data(), std::size_t(inputs), weights, 0, weights.panel_count(), nullptr, c.data(),
                   std::size_t(outputs));
        };
    });
    set_operations(state, 2.0 * rows * inputs * outputs);
}

// One token times many matrices, one after another. bits, inputs, outputs.
void QuantizedProduct(benchmark::State& state) {
    QuantizedMatrix weights;
    weights.bits = int(state.range(1));
    weights.inputs = int(state.range(2));
    weights.outputs = int(state.range(3));
    const std::size_t matrices =
        std::max<std::size_t>(1, beyond_caches / std::size_t(state.range(0)) / weights.bytes());
    measure(state, [&] {
        auto buffer = std::make_shared<Buffer>(matrices * weights.bytes());
        std::fill_n(buffer->as<std::uint8_t>(), buffer->size(), std::uint8_t(0x11));
        return [=, x = random_floats(std::size_t(weights.inputs)),
                memory = std::vector<std::byte>(QuantizedRows::bytes(1, weights.inputs, 15)),
                y = std::vector<float>(std::size_t(weights.outputs))]() mutable {
            const QuantizedRows rows = QuantizedRows::at(memory.data(), 1, weights.inputs, 15);
            QuantizedMatrix matrix = weights;
            for (std::size_t m = 0; m < matrices; ++m) {
                matrix.groups = buffer->as<std::byte>() + m * matrix.bytes();
                quantize_rows(1, x.data(), x.size(), rows);
                quantized_product(matrix, 0, matrix.group_count(), 1, rows, nullptr, y.data(), y.size());
            }
        };
    });
    set_bytes(state, double(matrices) * double(weights.bytes()));
}

// As in a prefill: many rows. bits, rows, inputs, outputs.
void QuantizedRowsProduct(benchmark::State& state) {
    QuantizedMatrix weights;
    weights.bits = int(state.range(1));
    const int count = int(state.range(2));
    weights.inputs = int(state.range(3));
    weights.outputs = int(state.range(4));
    measure(state, [&] {
        auto buffer = std::make_shared<Buffer>(weights.bytes());
        std::fill_n(buffer->as<std::uint8_t>(), buffer->size(), std::uint8_t(0x11));
        return [=, x = random_floats(std::size_t(count) * std::size_t(weights.inputs)),
                memory = std::vector<std::byte>(QuantizedRows::bytes(count, weights.inputs, 8)),
                y = std::vector<float>(std::size_t(count) * std::size_t(weights.outputs))]() mutable {
            const QuantizedRows rows = QuantizedRows::at(memory.data(), count, weights.inputs, 8);
            QuantizedMatrix matrix = weights;
            matrix.groups = buffer->as<std::byte>();
            quantize_rows(count, x.data(), std::size_t(weights.inputs), rows);
            quantized_product(matrix, 0, matrix.group_count(), count, rows, nullptr, y.data(),
                              std::size_t(weights.outputs));
        };
    });
    set_operations(state, 2.0 * count * weights.inputs * weights.outputs);
}

// Pages of several heads, each head's in runs of 16, as reading a context in chunks of 512 tokens leaves
// them.
class Heads {
  public:
    Heads(std::size_t heads, std::size_t tokens, int head_dim)
        : memory_(heads * pages_for(tokens) * page_bytes(head_dim)), lists_(heads) {
        auto* elements = memory_.as<fp16_t>();
        const std::vector<float> values = random_floats(4096);
        for (std::size_t i = 0; i < memory_.size() / sizeof(fp16_t); ++i)
            elements[i] = fp32_to_fp16(values[i % 4096]);
        std::size_t page = 0;
        for (std::size_t first = 0; first < pages_for(tokens); first += 16)
            for (std::vector<const fp16_t*>& list : lists_)
                for (std::size_t i = first; i < std::min(first + 16, pages_for(tokens)); ++i)
                    list.push_back(elements + page++ * page_elements(head_dim));
    }
    std::size_t count() const { return lists_.size(); }
    const fp16_t* const* pages(std::size_t head) const { return lists_[head].data(); }

  private:
    Buffer memory_;
    std::vector<std::vector<const fp16_t*>> lists_;
};

// The task and what it writes to.
struct Task {
    std::vector<float> queries, workspace, result;
    std::vector<std::uint32_t> visible;
    AttentionTask task;
    AttentionPartial partial;

    Task(int rows, int head_dim)
        : queries(random_floats(std::size_t(rows * head_dim))),
          workspace(attention_workspace(rows, head_dim)),
          result(std::size_t(rows) * std::size_t(padded_head_dim(head_dim) + 2)),
          visible(std::size_t(rows)) {
        for (float& x : queries) x *= 0.1f;
        task.rows = rows;
        task.head_dim = head_dim;
        task.query = queries.data();
        task.visible = visible.data();
        float* maximum = result.data() + std::size_t(rows) * std::size_t(padded_head_dim(head_dim));
        partial = {result.data(), maximum, maximum + rows};
    }
};

// One token's query heads of a KV head over its keys and values, in splits of 256 slots. group, head_dim,
// keys.
void DecodeAttention(benchmark::State& state) {
    const int group = int(state.range(1)), head_dim = int(state.range(2));
    const auto keys = std::uint32_t(state.range(3));
    const std::size_t bytes_of_head = pages_for(keys) * page_bytes(head_dim);
    const std::size_t count =
        std::max<std::size_t>(1, beyond_caches / std::size_t(state.range(0)) / bytes_of_head);
    measure(state, [&] {
        return [=, heads = std::make_shared<Heads>(count, keys, head_dim),
                t = std::make_shared<Task>(group, head_dim)] {
            std::fill(t->visible.begin(), t->visible.end(), keys);
            for (std::size_t h = 0; h < count; ++h)
                for (std::uint32_t begin = 0; begin < keys; begin += 1024) {
                    t->task.pages = heads->pages(h);
                    t->task.slot_begin = begin;
                    t->task.slot_end = std::min(keys, begin + 1024);
                    attend(t->task, t->partial, t->workspace.data());
                }
        };
    });
    set_bytes(state, double(count) * double(bytes_of_head));
}

// A block of 48 query rows over the keys before it, as in the middle of a prefill. group, head_dim, keys.
void PrefillAttention(benchmark::State& state) {
    const int group = int(state.range(1)), head_dim = int(state.range(2)), rows = 48 / group * group;
    const auto keys = std::uint32_t(state.range(3));
    constexpr int repetitions = 10;
    measure(state, [=] {
        return [=, heads = std::make_shared<Heads>(1, keys, head_dim),
                t = std::make_shared<Task>(rows, head_dim)] {
            for (int r = 0; r < rows; ++r)
                t->visible[std::size_t(r)] = keys - std::uint32_t((rows - 1 - r) / group);
            t->task.pages = heads->pages(0);
            t->task.slot_end = keys;
            for (int i = 0; i < repetitions; ++i) attend(t->task, t->partial, t->workspace.data());
        };
    });
    set_operations(state, 4.0 * rows * head_dim * keys * repetitions);
}

// What the value norms of compression take, for 8192 tokens of a KV head. head_dim, group.
void GramNorms(benchmark::State& state) {
    const int head_dim = int(state.range(1)), group = int(state.range(2));
    constexpr int tokens = 8192;
    measure(state, [=] {
        return [=, heads = std::make_shared<Heads>(1, tokens, head_dim),
                panels = random_floats(PackedMatrix::elements(head_dim, head_dim)),
                workspace = std::vector<float>(2 * page_tokens * std::size_t(padded_head_dim(head_dim))),
                norms = std::vector<float>(page_tokens)]() mutable {
            const std::vector<PackedMatrix> grams(std::size_t(group),
                                                  PackedMatrix{panels.data(), head_dim, head_dim});
            for (int page = 0; page < tokens / page_tokens; ++page)
                gram_value_norms(heads->pages(0)[page], page_tokens, head_dim, grams, norms.data(),
                                 workspace.data());
        };
    });
    set_operations(state, 2.0 * tokens * head_dim * head_dim * group);
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
    using namespace holdfast;
    benchmark::Initialize(&argc, argv);
    if (const char* name = std::getenv("HOLDFAST_SIMD")) use_simd_target(name);
    benchmark::AddCustomContext("instruction set", current_simd_target());
    const int cores = int(std::max(1u, std::thread::hardware_concurrency()));
    const auto add = [&](const char* name, void (*function)(benchmark::State&),
                         const std::vector<std::vector<std::int64_t>>& arguments) {
        auto* registered = benchmark::RegisterBenchmark(name, function);
        registered->UseRealTime()->Unit(benchmark::kMillisecond);
        for (const std::vector<std::int64_t>& list : arguments)
            for (int threads = 1; threads <= cores; threads = threads < cores ? cores : cores + 1) {
                std::vector<std::int64_t> all = {threads};
                all.insert(all.end(), list.begin(), list.end());
                registered->Args(all);
            }
    };
    add("read memory", ReadMemory, {{}});
    add("quantized product", QuantizedProduct, {{4, 576, 1536}, {4, 2048, 8192}, {8, 576, 1536}});
    add("quantized product of many rows", QuantizedRowsProduct,
        {{4, 96, 576, 1536}, {4, 96, 2048, 8192}, {4, 96, 8192, 2048}, {8, 96, 2048, 8192}});
    add("decode attention", DecodeAttention,
        {{3, 64, 1024}, {3, 64, 8192}, {3, 64, 32768}, {4, 64, 8192}, {4, 128, 8192}, {1, 64, 8192}});
    add("sgemm", Sgemm, {{512, 576, 1536}, {512, 1536, 576}, {2048, 2048, 2048}});
    add("matmul", Matmul, {{512, 576, 1536}, {512, 1536, 576}, {512, 2048, 8192}});
    add("prefill attention", PrefillAttention,
        {{3, 64, 4096}, {3, 64, 16384}, {4, 64, 4096}, {4, 128, 4096}, {1, 80, 4096}});
    add("gram norms", GramNorms, {{64, 3}, {128, 4}});
    benchmark::RunSpecifiedBenchmarks();
}
