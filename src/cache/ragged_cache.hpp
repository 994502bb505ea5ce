#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/page_pool.hpp"

namespace holdfast {

// The keys and values of one sequence, where every (layer, KV head) keeps its own tokens.
//
// A slot is a place in a head's list of pages; a position is where the token was read. Evicting moves
// entries to other slots, never to other positions: keys keep the rotation of the position they were
// read at, and the next token's position is the number of tokens read.
//
// Copies share pages; a copy that appends copies only the last page of each head.
class RaggedCache {
  public:
    RaggedCache(std::shared_ptr<PagePool> pool, int layers, int kv_heads);
    RaggedCache(const RaggedCache& other);
    RaggedCache(RaggedCache&& other) = default;
    RaggedCache& operator=(const RaggedCache&) = delete;
    ~RaggedCache();

    int layers() const { return layers_; }
    int kv_heads() const { return kv_heads_; }
    int head_dim() const { return pool_->head_dim(); }

    // Entries of a head and their positions, in slot order.
    std::uint32_t length(int layer, int head) const {
        return std::uint32_t(at(layer, head).positions.size());
    }
    std::span<const std::uint32_t> positions(int layer, int head) const { return at(layer, head).positions; }
    const fp16_t* const* pages(int layer, int head) const { return at(layer, head).addresses.data(); }

    // Number of tokens read so far: the position of the next one.
    std::uint32_t next_position() const { return next_position_; }
    void set_next_position(std::uint32_t position) { next_position_ = position; }

    // Makes room for `tokens` entries at positions first_position, first_position + 1, … in every head of a
    // layer; they are in length() from now on, and write() fills them.
    void append(int layer, std::uint32_t first_position, std::uint32_t tokens);
    void write(int layer, int head, std::uint32_t slot, const float* key, const float* value);

    // Keeps exactly these slots of a head (rising) in their order, and frees the pages that become empty.
    void retain(int layer, int head, std::span<const std::uint32_t> slots);

    // Takes over a layer's entries as they stand in another cache of the same pool, whose pages it shares.
    void share_layer(int layer, const RaggedCache& from);
    // The same, leaving the other cache's layer empty; page lists keep their addresses.
    void take_layer(int layer, RaggedCache& from);

    // Takes over all of another cache of the same pool, which is empty then.
    void take(RaggedCache& from);

    // Fills an empty head with pages of the pool, each of which has a reference for it.
    void adopt(int layer, int head, std::vector<std::uint32_t> positions, std::vector<PageId> pages);

    // Frees a layer's first pages whose entries were all read before `position`: whole attention blocks, so
    // that results don't depend on when they were freed.
    void drop_before(int layer, std::uint32_t position);

    // Forgets what was read at `position` and behind it.
    void truncate(std::uint32_t position);

    // Moves this cache's own pages to the front of the pool and gives the empty end back to the system.
    void defragment();

    std::size_t entries() const;  // over all layers and heads
    std::size_t bytes() const;    // of the pages in use, partly filled ones whole
    static constexpr std::size_t entry_bytes(int head_dim) {
        return std::size_t(head_dim) * 2 * sizeof(fp16_t);
    }

  private:
    struct Head {
        std::vector<PageId> pages;
        std::vector<fp16_t*> addresses;  // of the pages
        std::vector<std::uint32_t> positions;
    };

    Head& at(int layer, int head) {
        return heads_[std::size_t(layer) * std::size_t(kv_heads_) + std::size_t(head)];
    }
    const Head& at(int layer, int head) const { return const_cast<RaggedCache*>(this)->at(layer, head); }
    void add_page(Head& head);
    void clear_layer(int layer);
    void release_pages_behind(Head& head);
    void replace_page(Head& head, std::size_t index, bool copy);

    std::shared_ptr<PagePool> pool_;
    int layers_;
    int kv_heads_;
    std::uint32_t next_position_ = 0;
    std::vector<Head> heads_;
};

}  // namespace holdfast
