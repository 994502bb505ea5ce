#include "base/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {

constexpr std::size_t huge_page = std::size_t(2) << 20;

// The number behind `key` in a file of lines "key number …"; 0 if there is none.
std::size_t field(const char* path, const std::string& key) {
    std::ifstream file(path);
    std::string word;
    while (file >> word) {
        if (word == key) {
            std::size_t value = 0;
            file >> value;
            return value;
        }
        file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return 0;
}

// The number in a file that holds nothing else, or `otherwise` ("max", no such file).
std::size_t number_in(const char* path, std::size_t otherwise) {
    std::ifstream file(path);
    std::size_t value = 0;
    return (file >> value) ? value : otherwise;
}

}  // namespace

void Buffer::Unmap::operator()(void* address) const {
    ::munmap(address, bytes);
}

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    const bool huge = bytes >= huge_page;
    const std::size_t slack = huge ? huge_page : 0;
    void* address = ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        throw Error("the system refused " + std::to_string(bytes >> 20) +
                    " MiB of memory: " + std::strerror(errno) + "; a smaller context or budget needs less");
    if (huge) {  // trim to a 2 MiB boundary
        auto* begin = static_cast<std::byte*>(address);
        const std::size_t head =
            (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
        if (head > 0) ::munmap(begin, head);
        constexpr std::size_t small_page = 4096;
        const std::size_t length = (bytes + small_page - 1) / small_page * small_page;
        if (bytes + slack > head + length) ::munmap(begin + head + length, bytes + slack - head - length);
        address = begin + head;
        ::madvise(address, bytes, MADV_HUGEPAGE);  // a wish: refused where huge pages are off
    }
    mapping_ = {address, Unmap{bytes}};
}

std::size_t anonymous_memory() {
    return 1024 * field("/proc/self/status", "RssAnon:");
}

std::size_t available_memory() {
    constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
    const std::size_t system = 1024 * field("/proc/meminfo", "MemAvailable:");
    const std::size_t limit = number_in("/sys/fs/cgroup/memory.max", none);
    // The group's file pages that nobody used of late are given up first.
    const std::size_t used = number_in("/sys/fs/cgroup/memory.current", 0);
    const std::size_t reclaimable = std::min(used, field("/sys/fs/cgroup/memory.stat", "inactive_file"));
    const std::size_t group = limit == none ? none : limit - std::min(limit, used - reclaimable);
    return std::min(system == 0 ? none : system, group);
}

}  // namespace holdfast
