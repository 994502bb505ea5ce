#include "cache/ragged_cache.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/attention.hpp"

namespace holdfast {

RaggedCache::RaggedCache(std::shared_ptr<PagePool> pool, int layers, int kv_heads)
    : pool_(std::move(pool)),
      layers_(layers),
      kv_heads_(kv_heads),
      heads_(std::size_t(layers) * std::size_t(kv_heads)) {}

RaggedCache::RaggedCache(const RaggedCache& other)
    : pool_(other.pool_),
      layers_(other.layers_),
      kv_heads_(other.kv_heads_),
      next_position_(other.next_position_),
      heads_(other.heads_) {
    for (const Head& head : heads_)
        for (PageId page : head.pages) pool_->share(page);
}

RaggedCache::~RaggedCache() {
    for (const Head& head : heads_)
        for (PageId page : head.pages) pool_->release(page);
    if (pool_) pool_->release_empty_slabs();
}

void RaggedCache::add_page(Head& head) {
    head.pages.push_back(pool_->allocate());
    head.addresses.push_back(pool_->address(head.pages.back()));
}

// Puts a page of our own in the place of page `index`.
void RaggedCache::replace_page(Head& head, std::size_t index, bool copy) {
    const PageId fresh = pool_->allocate();
    fp16_t* address = pool_->address(fresh);
    if (copy) std::copy_n(head.addresses[index], page_elements(head_dim()), address);
    pool_->release(head.pages[index]);
    head.pages[index] = fresh;
    head.addresses[index] = address;
}

void RaggedCache::append(int layer, std::uint32_t first_position, std::uint32_t tokens) {
    for (int h = 0; h < kv_heads_; ++h) {
        Head& head = at(layer, h);
        if (head.positions.size() % page_tokens != 0 && pool_->shared(head.pages.back()))
            replace_page(head, head.pages.size() - 1, true);
        for (std::uint32_t i = 0; i < tokens; ++i) head.positions.push_back(first_position + i);
        while (head.pages.size() < pages_for(head.positions.size())) add_page(head);
    }
}

void RaggedCache::write(int layer, int head, std::uint32_t slot, const float* key, const float* value) {
    fp16_t* page = at(layer, head).addresses[slot / page_tokens];
    store_token(page, int(slot % page_tokens), head_dim(), key, value);
}

void RaggedCache::retain(int layer, int h, std::span<const std::uint32_t> slots) {
    Head& head = at(layer, h);
    const std::size_t width = std::size_t(head_dim());
    const std::vector<fp16_t*> source = head.addresses;
    std::size_t own = 0;           // pages below it nobody else has
    std::vector<PageId> replaced;  // shared pages stay readable until everything is copied
    for (std::size_t i = 0, run; i < slots.size(); i += run) {
        const std::size_t page = i / page_tokens, column = i % page_tokens;
        run = 1;
        if (slots[i] == i) continue;
        if (page >= own && pool_->shared(head.pages[page])) {
            pool_->share(head.pages[page]);
            replaced.push_back(head.pages[page]);
            replace_page(head, page, true);
        }
        own = page + 1;
        fp16_t* to = head.addresses[page];
        const fp16_t* from = source[slots[i] / page_tokens];
        const std::size_t from_column = slots[i] % page_tokens;
        // Neighbours that stay neighbours, in one page before and after, are moved together.
        const std::size_t most =
            std::min(slots.size() - i, std::size_t(page_tokens) - std::max(column, from_column));
        while (run < most && slots[i + run] == slots[i] + run) ++run;
        for (std::size_t d = 0; d < width; ++d)
            std::copy_n(page_keys(from) + d * page_tokens + from_column, run,
                        page_keys(to) + d * page_tokens + column);
        std::copy_n(page_values(from, head_dim()) + from_column * width, run * width,
                    page_values(to, head_dim()) + column * width);
        std::copy_n(head.positions.begin() + slots[i], run, head.positions.begin() + std::ptrdiff_t(i));
    }
    for (PageId page : replaced) pool_->release(page);
    head.positions.resize(slots.size());
    if (head.positions.capacity() > 2 * slots.size()) head.positions.shrink_to_fit();
    release_pages_behind(head);
}

void RaggedCache::share_layer(int layer, const RaggedCache& from) {
    clear_layer(layer);
    for (int h = 0; h < kv_heads_; ++h) {
        at(layer, h) = from.at(layer, h);
        for (PageId page : at(layer, h).pages) pool_->share(page);
    }
}

void RaggedCache::take_layer(int layer, RaggedCache& from) {
    clear_layer(layer);
    for (int h = 0; h < kv_heads_; ++h) std::swap(at(layer, h), from.at(layer, h));
}

void RaggedCache::take(RaggedCache& from) {
    for (int l = 0; l < layers_; ++l) take_layer(l, from);
    next_position_ = std::exchange(from.next_position_, 0);
}

void RaggedCache::clear_layer(int layer) {
    for (int h = 0; h < kv_heads_; ++h) {
        for (PageId page : at(layer, h).pages) pool_->release(page);
        at(layer, h) = Head();
    }
}

void RaggedCache::adopt(int layer, int h, std::vector<std::uint32_t> positions, std::vector<PageId> pages) {
    Head& head = at(layer, h);
    for (PageId page : pages) head.addresses.push_back(pool_->address(page));
    head.pages = std::move(pages);
    head.positions = std::move(positions);
}

void RaggedCache::drop_before(int layer, std::uint32_t position) {
    for (int h = 0; h < kv_heads_; ++h) {
        Head& head = at(layer, h);
        const auto kept = std::lower_bound(head.positions.begin(), head.positions.end(), position);
        constexpr int pages_of_block = int(attention_block) / page_tokens;
        const std::ptrdiff_t pages =
            (kept - head.positions.begin()) / std::ptrdiff_t(attention_block) * pages_of_block;
        for (std::ptrdiff_t i = 0; i < pages; ++i) pool_->release(head.pages[std::size_t(i)]);
        head.pages.erase(head.pages.begin(), head.pages.begin() + pages);
        head.addresses.erase(head.addresses.begin(), head.addresses.begin() + pages);
        head.positions.erase(head.positions.begin(), head.positions.begin() + pages * page_tokens);
    }
}

void RaggedCache::truncate(std::uint32_t position) {
    for (Head& head : heads_) {
        const auto end = std::ranges::lower_bound(head.positions, position);
        head.positions.erase(end, head.positions.end());
        release_pages_behind(head);
    }
    next_position_ = std::min(next_position_, position);
}

void RaggedCache::release_pages_behind(Head& head) {
    while (head.pages.size() > pages_for(head.positions.size())) {
        pool_->release(head.pages.back());
        head.pages.pop_back();
        head.addresses.pop_back();
    }
}

void RaggedCache::defragment() {
    const PageId live = PageId(pool_->pages_in_use());
    for (Head& head : heads_)
        for (std::size_t i = 0; i < head.pages.size(); ++i)
            if (head.pages[i] >= live && !pool_->shared(head.pages[i])) replace_page(head, i, true);
    pool_->release_empty_slabs();
}

std::size_t RaggedCache::entries() const {
    return std::accumulate(heads_.begin(), heads_.end(), std::size_t(0),
                           [](std::size_t sum, const Head& head) { return sum + head.positions.size(); });
}

std::size_t RaggedCache::bytes() const {
    const std::size_t pages =
        std::accumulate(heads_.begin(), heads_.end(), std::size_t(0),
                        [](std::size_t sum, const Head& head) { return sum + head.pages.size(); });
    return pages * pool_->page_bytes();
}

}  // namespace holdfast
