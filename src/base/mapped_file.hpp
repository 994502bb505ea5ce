#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace holdfast {

// A file mapped read-only; its pages are read as they are touched.
class MappedFile {
  public:
    // Throws Error if the path can't be opened, isn't a regular file, or can't be mapped.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return {data_, size_}; }

    // Pages that were read needn't stay in memory; what is touched again is read again.
    void release_pages() const;

  private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace holdfast
