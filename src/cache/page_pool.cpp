#include "cache/page_pool.hpp"

#include <algorithm>
#include <functional>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {
constexpr std::size_t slab_target = std::size_t(2) << 20;  // one huge page
}

PagePool::PagePool(int head_dim)
    : head_dim_(head_dim),
      page_bytes_(holdfast::page_bytes(head_dim)),
      pages_per_slab_(std::max<std::size_t>(1, slab_target / page_bytes_)),
      slab_bytes_(pages_per_slab_ * page_bytes_) {}

PageId PagePool::allocate() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        slabs_.emplace_back(slab_bytes_);
        const std::size_t first = references_.size();
        references_.resize(first + pages_per_slab_, 0);
        for (std::size_t i = 0; i < pages_per_slab_; ++i)
            free_.push_back(PageId(first + i));  // rising: a heap
    }
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    const PageId page = free_.back();
    free_.pop_back();
    references_[page] = 1;
    return page;
}

void PagePool::share(PageId page) {
    if (is_mapped(page)) return;
    const std::lock_guard lock(mutex_);
    ++references_[page];
}

bool PagePool::shared(PageId page) const {
    if (is_mapped(page)) return true;
    const std::lock_guard lock(mutex_);
    return references_[page] > 1;
}

void PagePool::release(PageId page) {
    if (is_mapped(page)) return;
    const std::lock_guard lock(mutex_);
    if (--references_[page] > 0) return;
    free_.push_back(page);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

PageId PagePool::map(std::shared_ptr<const void> owner, const fp16_t* pages, std::size_t count) {
    const std::lock_guard lock(mutex_);
    if (mapped_ != nullptr || count > first_mapped) throw Error("a pool takes in one mapping of pages");
    mapping_ = std::move(owner);
    mapped_ = pages;
    return first_mapped;
}

fp16_t* PagePool::address(PageId page) const {
    const std::lock_guard lock(mutex_);
    if (is_mapped(page))  // read-only: shared() makes writers copy it
        return const_cast<fp16_t*>(mapped_) + std::size_t(page - first_mapped) * page_elements(head_dim_);
    return slabs_[page / pages_per_slab_].as<fp16_t>() + page % pages_per_slab_ * page_elements(head_dim_);
}

std::size_t PagePool::pages_in_use() const {
    const std::lock_guard lock(mutex_);
    return references_.size() - free_.size();
}

std::size_t PagePool::bytes_reserved() const {
    const std::lock_guard lock(mutex_);
    return slabs_.size() * slab_bytes_;
}

void PagePool::release_empty_slabs() {
    const std::lock_guard lock(mutex_);
    while (!slabs_.empty()) {
        const auto last = references_.end() - std::ptrdiff_t(pages_per_slab_);
        if (std::any_of(last, references_.end(), [](std::uint32_t count) { return count > 0; })) break;
        references_.erase(last, references_.end());
        slabs_.pop_back();
    }
    std::erase_if(free_, [&](PageId page) { return page >= references_.size(); });
    std::make_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace holdfast
