#pragma once

#include <string>

namespace holdfast {

// Writes a file whole or not at all: under another name first, then renamed. Throws Error that names the
// path.
void write_whole_file(const std::string& path, const std::string& content);

}  // namespace holdfast
