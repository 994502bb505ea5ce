// Reads .safetensors files: a JSON header, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "holdfast/error.hpp"

namespace holdfast::testing {

class Safetensors {
  public:
    explicit Safetensors(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw Error("cannot open '" + path + "'");
        bytes_.assign(std::istreambuf_iterator<char>(file), {});
        std::uint64_t header = 0;
        if (bytes_.size() < sizeof header) throw Error("'" + path + "' is no safetensors file");
        std::memcpy(&header, bytes_.data(), sizeof header);
        if (header > bytes_.size() - sizeof header) throw Error("'" + path + "' is no safetensors file");
        data_ = sizeof header + header;
        entries_ =
            nlohmann::json::parse(bytes_.begin() + sizeof header, bytes_.begin() + std::ptrdiff_t(data_));
        if (entries_.contains("__metadata__")) {
            metadata_ = entries_["__metadata__"].get<std::map<std::string, std::string>>();
            entries_.erase("__metadata__");
        }
    }

    bool has(const std::string& name) const { return entries_.contains(name); }
    const nlohmann::json& entries() const { return entries_; }
    bool has_metadata(const std::string& key) const { return metadata_.contains(key); }
    const std::string& metadata(const std::string& key) const {
        const auto found = metadata_.find(key);
        if (found == metadata_.end()) throw Error("the file's metadata lacks " + key);
        return found->second;
    }

    // A copy, aligned. T must have the entry's size.
    template <class T>
    std::vector<T> read(const std::string& name) const {
        if (!has(name)) throw Error("the file lacks " + name);
        const auto range = entries_[name]["data_offsets"].get<std::vector<std::size_t>>();
        if (range[1] < range[0] || data_ + range[1] > bytes_.size())
            throw Error(name + " lies beyond the file's end");
        std::vector<T> values((range[1] - range[0]) / sizeof(T));
        std::memcpy(values.data(), bytes_.data() + data_ + range[0], values.size() * sizeof(T));
        return values;
    }

  private:
    std::vector<char> bytes_;
    std::size_t data_ = 0;
    nlohmann::json entries_;
    std::map<std::string, std::string> metadata_;
};

}  // namespace holdfast::testing
