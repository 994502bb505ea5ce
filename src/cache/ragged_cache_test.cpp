#include "cache/ragged_cache.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace holdfast {
namespace {

constexpr int head_dim = 8;

// Entries that say who they are: every number of an entry is its position plus 100 · head.
void fill(RaggedCache& cache, int layer, std::uint32_t first, std::uint32_t tokens) {
    cache.append(layer, first, tokens);
    for (int h = 0; h < cache.kv_heads(); ++h)
        for (std::uint32_t i = 0; i < tokens; ++i) {
            const std::vector<float> key(head_dim, float(first + i) + 100.0f * float(h));
            std::vector<float> value = key;
            for (float& x : value) x = -x;
            cache.write(layer, h, cache.length(layer, h) - tokens + i, key.data(), value.data());
        }
}

void expect_entries(const RaggedCache& cache, int layer, int head,
                    const std::vector<std::uint32_t>& positions) {
    ASSERT_EQ(cache.length(layer, head), positions.size());
    for (std::uint32_t slot = 0; slot < positions.size(); ++slot) {
        ASSERT_EQ(cache.positions(layer, head)[slot], positions[slot]);
        const fp16_t* page = cache.pages(layer, head)[slot / page_tokens];
        for (int d = 0; d < head_dim; ++d) {
            const float expected = float(positions[slot]) + 100.0f * float(head);
            ASSERT_EQ(fp16_to_fp32(page_keys(page)[d * page_tokens + int(slot % page_tokens)]), expected);
            ASSERT_EQ(fp16_to_fp32(page_values(page, head_dim)[int(slot % page_tokens) * head_dim + d]),
                      -expected);
        }
    }
}

// Breaks if eviction mixes entries up, loses positions, or keeps pages that hold nothing.
TEST(RaggedCache, RetainKeepsExactlyTheChosenEntries) {
    auto pool = std::make_shared<PagePool>(head_dim);
    RaggedCache cache(pool, 2, 3);
    fill(cache, 0, 0, 500);
    fill(cache, 1, 0, 500);
    std::mt19937 random(1);
    for (int h = 0; h < 3; ++h) {
        std::vector<std::uint32_t> slots;
        for (std::uint32_t s = 0; s < 500; ++s)
            if (random() % 3 == 0) slots.push_back(s);
        cache.retain(0, h, slots);
        expect_entries(cache, 0, h, slots);
        EXPECT_EQ(cache.bytes() % pool->page_bytes(), 0u);
    }
    std::vector<std::uint32_t> all(500);
    std::iota(all.begin(), all.end(), 0u);
    for (int h = 0; h < 3; ++h) expect_entries(cache, 1, h, all);  // the other layer is untouched
    std::size_t pages = 0;
    for (int l = 0; l < 2; ++l)
        for (int h = 0; h < 3; ++h) pages += pages_for(cache.length(l, h));
    EXPECT_EQ(pool->pages_in_use(), pages);
}

// Breaks if a copy writes into pages that it shares, or copies more than the last page of each head.
TEST(RaggedCache, CopiesShareAllButWhatTheyWrite) {
    auto pool = std::make_shared<PagePool>(head_dim);
    RaggedCache original(pool, 1, 2);
    fill(original, 0, 0, 100);
    std::vector<std::uint32_t> hundred(100), more(140);
    std::iota(hundred.begin(), hundred.end(), 0u);
    std::iota(more.begin(), more.end(), 0u);
    const std::size_t before = pool->pages_in_use();
    {
        RaggedCache copy = original;
        EXPECT_EQ(pool->pages_in_use(), before);
        fill(copy, 0, 100, 1);
        EXPECT_EQ(pool->pages_in_use(), before + 2);  // one page of each head
        fill(copy, 0, 101, 39);
        for (int h = 0; h < 2; ++h) {
            expect_entries(copy, 0, h, more);
            expect_entries(original, 0, h, hundred);
        }
        RaggedCache evicted = original;  // evicting from a copy leaves the original alone too
        const std::vector<std::uint32_t> odd = {1, 33, 35, 64, 99};
        evicted.retain(0, 1, odd);
        expect_entries(evicted, 0, 1, odd);
        expect_entries(original, 0, 1, hundred);
    }
    EXPECT_EQ(pool->pages_in_use(), before);
}

// Breaks if a sliding layer loses what is still seen, keeps more than a block too much, or takes a shared
// page from another sequence.
TEST(RaggedCache, DropsWhatALayerNoLongerSees) {
    auto pool = std::make_shared<PagePool>(head_dim);
    RaggedCache cache(pool, 2, 2);
    fill(cache, 0, 0, 700);
    fill(cache, 1, 0, 700);
    RaggedCache copy = cache;
    cache.drop_before(0, 600);
    for (int h = 0; h < 2; ++h) {
        std::vector<std::uint32_t> kept(700 - 512), all(700);
        std::iota(kept.begin(), kept.end(), 512u);  // whole blocks of 128
        std::iota(all.begin(), all.end(), 0u);
        expect_entries(cache, 0, h, kept);
        expect_entries(cache, 1, h, all);
        expect_entries(copy, 0, h, all);
    }
    cache.drop_before(0, 10);
    EXPECT_EQ(cache.length(0, 0), 188u);
    fill(cache, 0, 700, 5);
    EXPECT_EQ(cache.positions(0, 0).back(), 704u);
}

// Breaks if memory that eviction freed isn't given back, or moving pages loses entries.
TEST(RaggedCache, DefragmentGivesMemoryBack) {
    auto pool = std::make_shared<PagePool>(head_dim);
    RaggedCache cache(pool, 4, 2);
    const std::uint32_t tokens = 60000;  // about 1.9 MiB a layer and head
    for (int l = 0; l < 4; ++l) cache.append(l, 0, tokens);
    const std::size_t full = pool->bytes_reserved();
    std::vector<std::uint32_t> last = {tokens - 2, tokens - 1};
    for (int l = 0; l < 4; ++l)
        for (int h = 0; h < 2; ++h) cache.retain(l, h, last);
    fill(cache, 3, 7, 1);
    cache.defragment();
    EXPECT_LT(pool->bytes_reserved(), full / 7);
    EXPECT_EQ(cache.positions(3, 1)[2], 7u);
    EXPECT_EQ(fp16_to_fp32(page_keys(cache.pages(3, 1)[0])[2]), 107.0f);
}

}  // namespace
}  // namespace holdfast
