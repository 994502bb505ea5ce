#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "ggml-cpp.h"
#include "gguf.h"

namespace holdfast {

// A GGUF file: its key-value pairs, and its tensors mapped into memory. A model that was split into several
// files (NAME-00001-of-00004.gguf) is read from all of them, given the first.
class GgufFile {
  public:
    // Throws Error for what can't be read, isn't GGUF, or ends before its tensors do.
    explicit GgufFile(const std::string& path);

    const std::string& path() const { return path_; }

    // The value of a key, whatever integer or float type it is stored as; nullopt if it is missing.
    std::optional<double> number(const std::string& key) const;
    std::optional<std::string> text(const std::string& key) const;
    std::optional<std::size_t> array_length(const std::string& key) const;
    // An array of truth values, or of integers taken for such; nullopt if it is missing or no array.
    std::optional<std::vector<bool>> booleans(const std::string& key) const;
    // Throws Error that names the file and the key if it is missing.
    double required_number(const std::string& key) const;

    // Tensors with their data in the mapping; null if there is none of that name.
    ggml_tensor* tensor(const std::string& name) const;
    std::vector<std::string> tensor_names() const;
    std::size_t tensor_bytes() const { return tensor_bytes_; }
    void release_pages() const;  // as MappedFile's

  private:
    struct Part {
        std::unique_ptr<MappedFile> file;
        gguf_context_ptr gguf;
        ggml_context_ptr tensors;
        ggml_backend_buffer_ptr buffer;
    };

    void open_part(const std::string& path);
    const gguf_context* keys() const { return parts_.front().gguf.get(); }
    std::int64_t find(const std::string& key) const;

    std::string path_;
    std::vector<Part> parts_;
    std::size_t tensor_bytes_ = 0;
};

}  // namespace holdfast
