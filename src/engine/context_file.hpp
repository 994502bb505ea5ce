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

// How keys and values are stored.
enum class KvType { f16, q8_0 };
KvType parse_kv_type(const std::string& name);  // throws Error (usage) that lists them
const char* kv_type_name(KvType type);

struct SourceFile {
    std::string name;
    std::uint64_t bytes = 0;
    std::string hash;  // XXH3 of its content
};

// What a context file says of itself.
struct ContextInfo {
    std::string model_name, model_path, fingerprint;
    std::string method, explanation, budget;  // explanation: the method's parts and parameters, one a line
    KvType kv_type = KvType::f16;
    std::uint32_t tokens = 0;  // read; the next one's position
    int layers = 0, kv_heads = 0, head_dim = 0;
    ModelOptions model_options;   // that the model was opened with
    std::vector<double> reading;  // context length and rotation that came of them
    std::vector<SourceFile> sources;
};

// tokens: what was read. info: without what the model and the context say themselves. The file appears whole
// or not at all; throws Error that names it.
void save_context(const std::string& path, const Model& model, const Context& context,
                  std::span<const int> tokens, ContextInfo info);

// An opened context file, every byte of it checked.
class ContextFile {
  public:
    // Throws Error that names the file, and the section that is damaged.
    explicit ContextFile(const std::string& path);

    const ContextInfo& info() const { return info_; }
    std::span<const std::int32_t> tokens() const { return tokens_; }
    // Entries of each head [layers, kv_heads].
    std::span<const std::uint32_t> lengths() const { return lengths_; }
    std::uint64_t bytes() const { return file_->bytes().size(); }

    // f16 pages stay in the file's mapping, which lives as long as the context or a copy of its cache. Throws
    // Error if the model isn't the one that the context was read with.
    Context context(const Model& model) const;

  private:
    std::string path_;
    std::shared_ptr<const MappedFile> file_;
    ContextInfo info_;
    std::span<const std::int32_t> tokens_;
    std::span<const std::uint32_t> lengths_, positions_;
    std::span<const float> last_hidden_;
    std::span<const std::byte> pages_;
};

}  // namespace holdfast
