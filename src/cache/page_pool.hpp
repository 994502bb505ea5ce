#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memory.hpp"
#include "kernels/page.hpp"

namespace holdfast {

using PageId = std::uint32_t;

// Reference-counted pages of one size, in slabs that come from the system and go back to it.
// Caches of one pool may take, share and give back pages in several threads.
class PagePool {
  public:
    explicit PagePool(int head_dim);

    PageId allocate();  // with one reference; contents unspecified but finite
    void share(PageId page);
    void release(PageId page);
    // Whether a page must be copied before anything is written to it: always with mapped ones.
    bool shared(PageId page) const;

    // Takes in `count` pages that lie one after another in read-only memory, once in a pool's life; owner
    // keeps them there. Returns the first one's number; the others follow.
    PageId map(std::shared_ptr<const void> owner, const fp16_t* pages, std::size_t count);

    fp16_t* address(PageId page) const;

    std::size_t pages_in_use() const;
    std::size_t bytes_reserved() const;  // what the pool holds of the system
    std::size_t page_bytes() const { return page_bytes_; }
    int head_dim() const { return head_dim_; }

    // Gives slabs at the end of the pool without a page in use back to the system.
    void release_empty_slabs();

  private:
    static constexpr PageId first_mapped = PageId(1) << 31;
    static bool is_mapped(PageId page) { return page >= first_mapped; }

    int head_dim_;
    std::size_t page_bytes_;
    std::size_t pages_per_slab_;
    std::size_t slab_bytes_;
    mutable std::mutex mutex_;  // guards what follows; pages themselves are their caches' business
    std::vector<Buffer> slabs_;
    std::vector<std::uint32_t> references_;  // by page
    std::vector<PageId> free_;               // a heap: the lowest free page is taken first
    std::shared_ptr<const void> mapping_;
    const fp16_t* mapped_ = nullptr;
};

}  // namespace holdfast
