#pragma once

#include <string>
#include <vector>

namespace holdfast {

struct DocumentFile {
    std::string name;  // "-": stdin
    std::string text;
};

// "-" is stdin. Throws Error for a file that is missing, a directory, unreadable or empty; warns on stderr
// about text that isn't UTF-8.
std::vector<DocumentFile> read_document_files(const std::vector<std::string>& paths);

// One after another, an empty line between them.
std::string joined_documents(const std::vector<DocumentFile>& documents);
inline std::string read_documents(const std::vector<std::string>& paths) {
    return joined_documents(read_document_files(paths));
}

}  // namespace holdfast
