#include "model/attention_node.hpp"

#include <algorithm>

namespace holdfast {

namespace {

constexpr std::size_t round16(std::size_t floats) {
    return (floats + 15) / 16 * 16;
}  // whole cache lines

// How a run's work is cut into tasks: one KV head, a block of tokens and, when split, a range of slots.
// It depends on the shapes alone, never on the number of threads.
struct Partition {
    int kv_heads, head_dim, group, tokens, block_tokens, blocks, rows;

    Partition(int heads, int kv_heads, int head_dim, int tokens)
        : kv_heads(kv_heads), head_dim(head_dim), group(heads / kv_heads), tokens(tokens) {
        block_tokens = std::min(tokens, std::max(1, 48 / group));
        blocks = (tokens + block_tokens - 1) / block_tokens;
        rows = block_tokens * group;
    }
    Partition(const AttentionCall& call, int tokens)
        : Partition(call.heads, call.cache->kv_heads(), call.cache->head_dim(), tokens) {}

    // Of one split: as long as leaves some 24 tasks to divide among threads, since each begins with memory
    // that nobody fetched ahead.
    std::uint32_t split_slots(std::uint32_t longest) const {
        const std::uint32_t slots = longest * std::uint32_t(kv_heads) / 24;
        return std::clamp(slots / attention_block * attention_block, attention_block, 8 * attention_block);
    }
    int splits(std::uint32_t longest) const {
        return int((longest + split_slots(longest) - 1) / split_slots(longest));
    }

    std::size_t partial_floats() const {
        return round16(std::size_t(rows) * std::size_t(padded_head_dim(head_dim) + 2));
    }
    AttentionPartial partial(float* memory) const {
        float* maximum = memory + std::size_t(rows) * std::size_t(padded_head_dim(head_dim));
        return {memory, maximum, maximum + rows};
    }
    std::size_t query_floats() const { return round16(std::size_t(rows) * std::size_t(head_dim)); }
    std::size_t range_floats() const { return round16(2 * std::size_t(rows)); }
    std::size_t thread_floats() const {
        return query_floats() + range_floats() + partial_floats() + attention_workspace(rows, head_dim);
    }
};

std::uint32_t longest_head(const RaggedCache& cache, int layer) {
    std::uint32_t longest = 0;
    for (int h = 0; h < cache.kv_heads(); ++h) longest = std::max(longest, cache.length(layer, h));
    return longest;
}

// One token's part of a contiguous tensor [.., tokens].
float* of_token(const ggml_tensor* tensor, std::int64_t token, std::int64_t floats) {
    return static_cast<float*>(tensor->data) + token * floats;
}

// src: query, key, value.
void store(ggml_tensor* result, int thread, int threads, void* userdata) {
    AttentionCall& call = *static_cast<AttentionCall*>(userdata);
    if (thread == 0) call.next_task = 0;  // attend() begins behind a barrier
    const ggml_tensor* query = result->src[0];
    const ggml_tensor* key = result->src[1];
    const ggml_tensor* value = result->src[2];
    RaggedCache& cache = *call.cache;
    const int head_dim = cache.head_dim(), kv_heads = cache.kv_heads();
    const int tokens = int(query->ne[2]);
    for (int t = thread; t < tokens; t += threads) {
        for (int h = 0; h < kv_heads; ++h) {
            const std::uint32_t slot = cache.length(call.layer, h) - std::uint32_t(tokens - t);
            cache.write(call.layer, h, slot, of_token(key, t, kv_heads * head_dim) + h * head_dim,
                        of_token(value, t, kv_heads * head_dim) + h * head_dim);
        }
        if (call.queries != nullptr)
            std::copy_n(of_token(query, t, call.heads * head_dim), call.heads * head_dim,
                        call.queries + std::size_t(t) * std::size_t(call.heads * head_dim));
    }
}

// The query rows of a task: token-major, then the group's heads; multiplied by the scale. They see the slots
// [first, visible).
void gather_queries(const AttentionCall& call, const Partition& cut, const ggml_tensor* query, int head,
                    int first_token, int tokens, float* rows, std::uint32_t* first, std::uint32_t* visible) {
    const std::uint32_t length = call.cache->length(call.layer, head);
    for (int t = 0; t < tokens; ++t)
        for (int g = 0; g < cut.group; ++g) {
            const float* from = of_token(query, first_token + t, call.heads * cut.head_dim) +
                                (head * cut.group + g) * cut.head_dim;
            float* to = rows + (t * cut.group + g) * cut.head_dim;
            for (int i = 0; i < cut.head_dim; ++i) to[i] = from[i] * call.scale;
            const std::uint32_t end = length - std::uint32_t(cut.tokens - first_token - t) + 1;
            visible[t * cut.group + g] = end;
            // In a sliding layer the last tokens are there, one a slot.
            first[t * cut.group + g] =
                call.sliding_window == 0 ? 0 : end - std::min(end, call.sliding_window);
        }
}

void write_rows(const AttentionCall& call, const Partition& cut, std::span<const AttentionPartial> partials,
                int head, int first_token, int tokens, ggml_tensor* output) {
    for (int t = 0; t < tokens; ++t)
        for (int g = 0; g < cut.group; ++g)
            combine_partials(partials, t * cut.group + g, cut.head_dim,
                             of_token(output, first_token + t, call.heads * cut.head_dim) +
                                 (head * cut.group + g) * cut.head_dim);
}

// src: query, and what makes it wait for store(). Split: leaves partial results for combine().
void attend_tasks(ggml_tensor* result, int thread, int, void* userdata) {
    AttentionCall& call = *static_cast<AttentionCall*>(userdata);
    const ggml_tensor* query = result->src[0];
    RaggedCache& cache = *call.cache;
    const Partition cut(call, int(query->ne[2]));
    const std::uint32_t longest = longest_head(cache, call.layer), split_slots = cut.split_slots(longest);
    const int splits = call.split ? cut.splits(longest) : 1;

    float* memory = call.scratch->threads.as<float>() + std::size_t(thread) * cut.thread_floats();
    float* rows = memory;
    auto* visible = reinterpret_cast<std::uint32_t*>(memory + cut.query_floats());
    std::uint32_t* first = visible + cut.rows;
    float* own_partial = memory + cut.query_floats() + cut.range_floats();
    float* workspace = own_partial + cut.partial_floats();

    const int count = cache.kv_heads() * cut.blocks * splits;
    for (int i; (i = call.next_task.fetch_add(1, std::memory_order_relaxed)) < count;) {
        const int task_index = count - 1 - i;  // late blocks see the most slots: the long tasks first
        const int block = task_index / splits / cache.kv_heads();
        const int head = task_index / splits % cache.kv_heads(), split = task_index % splits;
        const int first_token = block * cut.block_tokens;
        const int tokens = std::min(cut.block_tokens, cut.tokens - first_token);
        gather_queries(call, cut, query, head, first_token, tokens, rows, first, visible);

        AttentionTask task;
        task.rows = tokens * cut.group;
        task.head_dim = cut.head_dim;
        task.query = rows;
        task.visible = visible;
        if (call.sliding_window > 0) task.first = first;
        task.soft_cap = call.soft_cap;
        task.pages = cache.pages(call.layer, head);
        const std::uint32_t seen = visible[task.rows - 1];
        task.slot_begin = call.split ? std::min(seen, std::uint32_t(split) * split_slots)
                                     : first[0] / attention_block * attention_block;
        task.slot_end = call.split ? std::min(seen, std::uint32_t(split + 1) * split_slots) : seen;
        if (call.split) {
            float* shared =
                call.scratch->partials.as<float>() +
                (std::size_t(head * cut.blocks + block) * std::size_t(splits) + std::size_t(split)) *
                    cut.partial_floats();
            attend(task, cut.partial(shared), workspace);
        } else {
            const AttentionPartial partial = cut.partial(own_partial);
            attend(task, partial, workspace);
            write_rows(call, cut, {&partial, 1}, head, first_token, tokens, result);
        }
    }
}

// src: query, and what makes it wait for attend_tasks().
void combine(ggml_tensor* result, int thread, int threads, void* userdata) {
    AttentionCall& call = *static_cast<AttentionCall*>(userdata);
    const Partition cut(call, int(result->src[0]->ne[2]));
    const int splits = cut.splits(longest_head(*call.cache, call.layer));
    std::vector<AttentionPartial> partials(std::size_t(splits), AttentionPartial{});
    for (int i = thread; i < call.cache->kv_heads() * cut.blocks; i += threads) {
        const int head = i / cut.blocks, block = i % cut.blocks;
        for (int s = 0; s < splits; ++s)
            partials[std::size_t(s)] = cut.partial(call.scratch->partials.as<float>() +
                                                   std::size_t(i * splits + s) * cut.partial_floats());
        const int first_token = block * cut.block_tokens;
        write_rows(call, cut, partials, head, first_token,
                   std::min(cut.block_tokens, cut.tokens - first_token), result);
    }
}

}  // namespace

void AttentionScratch::prepare(const AttentionCall& call, int tokens, int thread_count) {
    const Partition cut(call, tokens);
    threads.reserve(cut.thread_floats() * std::size_t(thread_count) * sizeof(float));
    if (!call.split) return;
    const std::size_t tasks = std::size_t(call.cache->kv_heads() * cut.blocks) *
                              std::size_t(cut.splits(longest_head(*call.cache, call.layer)));
    partials.reserve(tasks * cut.partial_floats() * sizeof(float));
}

std::size_t AttentionScratch::bytes_for(int heads, int kv_heads, int head_dim, int tokens, int thread_count) {
    return Partition(heads, kv_heads, head_dim, tokens).thread_floats() * std::size_t(thread_count) *
           sizeof(float);
}

ggml_tensor* store_node(ggml_context* context, AttentionCall* call, ggml_tensor* query, ggml_tensor* key,
                        ggml_tensor* value) {
    GGML_ASSERT(ggml_is_contiguous(query) && ggml_is_contiguous(key) && ggml_is_contiguous(value));
    ggml_tensor* inputs[] = {query, key, value};
    return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, inputs, 3, store, GGML_N_TASKS_MAX, call);
}

ggml_tensor* attention_nodes(ggml_context* context, AttentionCall* call, ggml_tensor* query,
                             ggml_tensor* stored) {
    const std::int64_t width = query->ne[0] * query->ne[1], tokens = query->ne[2];
    ggml_tensor* attended_inputs[] = {query, stored};
    if (!call->split)
        return ggml_custom_4d(context, GGML_TYPE_F32, width, tokens, 1, 1, attended_inputs, 2, attend_tasks,
                              GGML_N_TASKS_MAX, call);
    ggml_tensor* attended = ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, attended_inputs, 2,
                                           attend_tasks, GGML_N_TASKS_MAX, call);
    ggml_tensor* combined_inputs[] = {query, attended};
    return ggml_custom_4d(context, GGML_TYPE_F32, width, tokens, 1, 1, combined_inputs, 2, combine,
                          GGML_N_TASKS_MAX, call);
}

}  // namespace holdfast
