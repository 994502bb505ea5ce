#include "base/whole_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {

// To the disk, so that the name never stands for less than the whole file, even after a power failure.
bool flush_to_disk(const std::string& path) {
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return false;
    const bool flushed = fsync(descriptor) == 0;
    return close(descriptor) == 0 && flushed;
}

// What processes left behind that were killed while they wrote this file.
void remove_leftovers(const std::filesystem::path& path) {
    std::error_code error;
    const std::string begin = path.filename().string() + ".";
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename();
        if (!name.starts_with(begin) || !name.ends_with(".part")) continue;
        const int process = std::atoi(name.c_str() + begin.size());
        if (process > 0 && kill(process, 0) != 0 && errno == ESRCH)
            std::filesystem::remove(entry.path(), error);
    }
}

}  // namespace

void write_whole_file(const std::string& path, const std::string& content) {
    write_whole_file(path, [&](std::ostream& file) { file << content; });
}

void write_whole_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
    // Its own name for each process and call: two that write the same file at once don't mix.
    static std::atomic<unsigned> calls{0};
    const std::string temporary =
        path + "." + std::to_string(getpid()) + "." + std::to_string(++calls) + ".part";
    remove_leftovers(path);
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
