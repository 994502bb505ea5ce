#include "base/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "holdfast/error.hpp"

namespace holdfast {

MappedFile::MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw Error("cannot open '" + path + "': " + std::strerror(errno));
    struct stat status {};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(file);
        throw Error("'" + path + "' is not a regular file");
    }
    size_ = std::size_t(status.st_size);
    if (size_ > 0) {
        void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) {
            const int error = errno;
            ::close(file);
            throw Error("cannot map '" + path + "': " + std::strerror(error));
        }
        data_ = static_cast<const std::byte*>(mapped);
    }
    ::close(file);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release_pages() const {
    if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

}  // namespace holdfast
