#include "base/whole_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/error.hpp"

namespace holdfast {

namespace {

// To the disk, so that the name never stands for less than the whole file, even after a power failure.
bool flush_to_disk(const std::string& path) {
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return false;
    const bool flushed = fsync(descriptor) == 0;
    return close(descriptor) == 0 && flushed;
}

}  // namespace

void write_whole_file(const std::string& path, const std::string& content) {
    write_whole_file(path, [&](std::ostream& file) { file << content; });
}

void write_whole_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
    // Its own name for each process: two that write the same file at once don't mix.
    const std::string temporary = path + "." + std::to_string(getpid()) + ".part";
    errno = 0;
    std::ofstream file(temporary, std::ios::binary);
    try {
        write(file);
    } catch (...) {
        file.close();
        std::remove(temporary.c_str());
        throw;
    }
    file.close();
    if (!file || !flush_to_disk(temporary) || std::rename(temporary.c_str(), path.c_str()) != 0) {
        const std::string reason = errno == 0 ? "" : std::string(": ") + std::strerror(errno);
        std::remove(temporary.c_str());
        throw Error("cannot write '" + path + "'" + reason);
    }
}

}  // namespace holdfast
