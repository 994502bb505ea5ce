// Attention over a ragged cache as nodes of a ggml graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/memory.hpp"
#include "cache/ragged_cache.hpp"
#include "ggml.h"
#include "kernels/attention.hpp"

namespace holdfast {

// One layer's attention in one run of a graph. The layer's cache must already have room for the tokens
// (RaggedCache::append): they are its last entries.
struct AttentionCall {
    RaggedCache* cache = nullptr;
    int layer = 0;
    int heads = 0;
    float scale = 1;
    float soft_cap = 0;
    std::uint32_t sliding_window = 0;  // tokens that a query sees, itself among them; 0: all
    bool split = false;                // cut long lists of slots, so that few tokens employ many threads
    float* queries = nullptr;          // [tokens, heads, head_dim]: gets the rotated queries if given

    std::atomic<int> next_task{0};
    struct AttentionScratch* scratch = nullptr;
};

// Memory that the layers of a graph use one after another.
struct AttentionScratch {
    Buffer threads;   // per thread: gathered queries, partial results of one task, workspace
    Buffer partials;  // of split tasks

    // For a run of `tokens` tokens that the call's cache has room for already.
    void prepare(const AttentionCall& call, int tokens, int thread_count);
    // What prepare() would take without splitting.
    static std::size_t bytes_for(int heads, int kv_heads, int head_dim, int tokens, int thread_count);
};

// Writes keys and values into the cache: query [head_dim, heads, tokens], key [head_dim, kv_heads, tokens],
// both rotated; value [head_dim · kv_heads, tokens].
ggml_tensor* store_node(ggml_context* context, AttentionCall* call, ggml_tensor* query, ggml_tensor* key,
                        ggml_tensor* value);

// The query over the cache, behind store_node() → [head_dim · heads, tokens].
ggml_tensor* attention_nodes(ggml_context* context, AttentionCall* call, ggml_tensor* query,
                             ggml_tensor* stored);

}  // namespace holdfast
