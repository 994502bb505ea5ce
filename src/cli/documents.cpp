#include "cli/documents.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "holdfast/error.hpp"
#include "text/utf8.hpp"

namespace holdfast {

namespace {

std::string read_all(std::istream& stream) {
    return {std::istreambuf_iterator<char>(stream), {}};
}

std::string read_file(const std::string& path) {
    if (std::filesystem::is_directory(path))
        throw Error("'" + path + "' is a directory; -f wants a text file");
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error("cannot open the document '" + path + "': " + std::strerror(errno));
    return read_all(file);
}

}  // namespace

std::vector<DocumentFile> read_document_files(const std::vector<std::string>& paths) {
    std::vector<DocumentFile> files;
    for (const std::string& path : paths) {
        const std::string name = path == "-" ? "stdin" : "'" + path + "'";
        files.push_back({path, path == "-" ? read_all(std::cin) : read_file(path)});
        if (files.back().text.find_first_not_of(" \t\r\n") == std::string::npos)
            throw Error("the document " + name + " is empty");
        if (!is_utf8(files.back().text))
            fmt::print(stderr, "holdfast: {} is not valid UTF-8; what isn't is read as bytes\n", name);
    }
    return files;
}

std::string joined_documents(const std::vector<DocumentFile>& documents) {
    std::string all;
    for (const DocumentFile& document : documents) {
        if (!all.empty()) all += all.ends_with('\n') ? "\n" : "\n\n";
        all += document.text;
    }
    return all;
}

}  // namespace holdfast
