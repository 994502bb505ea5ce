#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace holdfast {

// Writes a file whole or not at all: under another name first, then renamed. Throws Error that names the
// path.
void write_whole_file(const std::string& path, const std::string& content);
// The same for what is written bit by bit.
void write_whole_file(const std::string& path, const std::function<void(std::ostream&)>& write);

}  // namespace holdfast
