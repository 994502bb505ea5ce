#include "base/whole_file.hpp"

#include <cstdio>
#include <fstream>

#include "base/error.hpp"

namespace holdfast {

void write_whole_file(const std::string& path, const std::string& content) {
    const std::string temporary = path + ".part";
    std::ofstream file(temporary, std::ios::binary);
    file << content;
    file.close();
    if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
        std::remove(temporary.c_str());
        throw Error("cannot write '" + path + "'");
    }
}

}  // namespace holdfast
