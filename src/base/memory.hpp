// Memory taken from and given back to the system, and what the process uses of it.
#pragma once

#include <cstddef>
#include <memory>

namespace holdfast {

// Zeroed memory straight from the system, so that freeing it really gives it back.
// Backed by huge pages where the system grants them. Aligned to 2 MiB from 2 MiB on, to 4 KiB below.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(std::size_t bytes);  // throws Error if the system refuses

    // Makes it hold at least this much; what it held is lost if it grows.
    void reserve(std::size_t bytes) {
        if (size_ < bytes) *this = Buffer(bytes);
    }

    std::size_t size() const { return size_; }
    template <class T>
    T* as() const {
        return static_cast<T*>(mapping_.get());
    }

  private:
    struct Unmap {
        std::size_t bytes;
        void operator()(void* address) const;
    };
    std::unique_ptr<void, Unmap> mapping_{nullptr, Unmap{0}};
    std::size_t size_ = 0;
};

// Bytes of this process that are resident and that no file backs (not mapped weights, not code); 0 where
// the system doesn't say.
std::size_t anonymous_memory();

// Bytes that a new allocation could use without swapping: the system's free and reclaimable memory,
// or what is left of the control group's limit if that is less.
std::size_t available_memory();

}  // namespace holdfast
