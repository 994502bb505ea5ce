// A compressed context in a file: docs/context-file.md has the format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "engine/context.hpp"

namespace holdfast {

constexpr const char* context_file_ending = ".hfkv";

// Throws Error (usage) if a path doesn't end as context files do.
void check_context_path(const std::string& path);

// Fills in what the model says of itself.
void complete_info(ContextInfo& info, const GgufModel& model, std::uint32_t tokens);

// tokens: what was read. info: without what complete_info() fills in. The file appears whole
// or not at all; throws Error that names it.
void save_context(const std::string& path, const GgufModel& model, const RaggedCache& cache,
                  std::span<const int> tokens, ContextInfo info);

// An opened context file. Everything but its pages was checked.
class ContextFile {
  public:
    // Throws Error that names the file, and the section that is damaged.
    explicit ContextFile(const std::string& path);

    const ContextInfo& info() const { return info_; }
    std::span<const std::int32_t> tokens() const { return tokens_; }
    // Entries of each head [layers, kv_heads].
    std::span<const std::uint32_t> lengths() const { return lengths_; }
    std::uint64_t bytes() const { return file_->bytes().size(); }

    // Throws Error if the pages are damaged; looks at each.
    void check_pages() const;

    // With check_pages() first. f16 pages stay in the file's mapping, which lives as long as the context or a
    // copy of its cache. Throws Error if the model isn't the one that the context was read with.
    ReadContext context(const GgufModel& model) const;

  private:
    std::string path_;
    std::shared_ptr<const MappedFile> file_;
    ContextInfo info_;
    std::span<const std::int32_t> tokens_;
    std::span<const std::uint32_t> lengths_, positions_;
    std::span<const std::byte> pages_;
    std::uint64_t pages_checksum_ = 0;
};

}  // namespace holdfast
