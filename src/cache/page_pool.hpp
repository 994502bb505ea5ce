#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.hpp"
#include "kernels/page.hpp"

namespace holdfast {

using PageId = std::uint32_t;

// Reference-counted pages of one size, in slabs that come from the system and go back to it.
// Not thread-safe: pages are taken and given back between computations.
class PagePool {
  public:
    explicit PagePool(int head_dim);

    PageId allocate();  // with one reference; contents unspecified but finite
    void share(PageId page) {
        if (!is_mapped(page)) ++references_[page];
    }
    void release(PageId page);
    // Whether a page must be copied before anything is written to it: always with mapped ones.
    bool shared(PageId page) const { return is_mapped(page) || references_[page] > 1; }

    // Takes in `count` pages that lie one after another in read-only memory, once in a pool's life; owner
    // keeps them there. Returns the first one's number; the others follow.
    PageId map(std::shared_ptr<const void> owner, const fp16_t* pages, std::size_t count);

    fp16_t* address(PageId page) const;

    std::size_t pages_in_use() const { return references_.size() - free_.size(); }
    std::size_t bytes_reserved() const {
        return slabs_.size() * slab_bytes_;
    }  // what the pool holds of the system
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
    std::vector<Buffer> slabs_;
    std::vector<std::uint32_t> references_;  // by page
    std::vector<PageId> free_;               // a heap: the lowest free page is taken first
    std::shared_ptr<const void> mapping_;
    const fp16_t* mapped_ = nullptr;
};

}  // namespace holdfast
