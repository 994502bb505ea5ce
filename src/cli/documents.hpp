#pragma once

#include <string>
#include <vector>

namespace holdfast {

// The files' contents one after another, an empty line between them; "-" is stdin. Throws Error for a file
// that is missing, a directory, unreadable or empty; warns on stderr about text that isn't UTF-8.
std::string read_documents(const std::vector<std::string>& paths);

}  // namespace holdfast
