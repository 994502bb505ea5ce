#include "engine/context_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "holdfast/error.hpp"
#include "base/hash.hpp"
#include "base/whole_file.hpp"
#include "ggml.h"

namespace holdfast {

namespace {

static_assert(std::endian::native == std::endian::little, "context files are little-endian");

constexpr char magic[8] = {'H', 'F', 'K', 'V', '\r', '\n', '\x1a', '\n'};
constexpr std::uint32_t version = 2;
constexpr std::size_t block = 4096;  // the header's size; what sections begin at multiples of
constexpr std::array section_names = {"description", "tokens", "lengths", "positions", "pages"};
enum Section { description, token_ids, head_lengths, head_positions, page_data, section_count };
constexpr const char* type_names[] = {"f16", "q8_0"};

struct SectionEntry {
    std::uint64_t offset, bytes;  // bytes: without the zeros behind, up to the next section
    std::uint64_t checksum;       // XXH3 of the section and the zeros behind it
};

struct Header {
    char magic[8];
    std::uint32_t version;
    std::uint32_t sections;
    std::uint64_t file_bytes;
    char fingerprint[16];
    SectionEntry entries[section_count];
    char zeros[block - 40 - section_count * sizeof(SectionEntry) - 8];
    std::uint64_t checksum;  // of everything before it
};
static_assert(sizeof(Header) == block);

std::uint64_t checksum(std::span<const std::byte> bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
}

std::size_t padded(std::size_t bytes) {
    return (bytes + block - 1) / block * block;
}

std::size_t stored_page_bytes(KvType type, int head_dim) {
    return type == KvType::f16 ? page_bytes(head_dim)
                               : ggml_row_size(GGML_TYPE_Q8_0, std::int64_t(page_elements(head_dim)));
}

// What keys' rotations depend on beyond the fingerprint.
std::vector<double> reading_of(const HyperParameters& p) {
    std::vector<double> numbers = {double(p.context_length)};
    for (const Rope* rope : {&p.rope, &p.sliding_rope})
        for (const double number :
             {double(rope->freq_base), double(rope->freq_scale), double(rope->ext_factor),
              double(rope->attn_factor), double(rope->beta_fast), double(rope->beta_slow),
              double(rope->original_context)})
            numbers.push_back(number);
    return numbers;
}

// Writes sections in their order and keeps their entries.
class SectionWriter {
  public:
    SectionWriter(std::ostream& stream, Header& header) : stream_(stream), header_(header) {}

    void begin() {
        begin_ = offset_;
        XXH3_64bits_reset(&hash_);
    }
    void write(const void* data, std::size_t bytes) {
        stream_.write(static_cast<const char*>(data), std::streamsize(bytes));
        XXH3_64bits_update(&hash_, data, bytes);
        offset_ += bytes;
    }
    void end(Section section) {
        const std::size_t bytes = offset_ - begin_;
        static constexpr char zeros[block] = {};
        write(zeros, padded(bytes) - bytes);
        header_.entries[section] = {begin_, bytes, XXH3_64bits_digest(&hash_)};
    }
    void section(Section section, const void* data, std::size_t bytes) {
        begin();
        write(data, bytes);
        end(section);
    }
    std::size_t offset() const { return offset_; }

  private:
    XXH3_state_t hash_;
    std::ostream& stream_;
    Header& header_;
    std::size_t offset_ = block, begin_ = block;
};

// A name that a terminal can show: control characters become question marks.
std::string shown(std::string name) {
    for (char& c : name)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return name;
}

std::string describe(const ContextInfo& info) {
    nlohmann::ordered_json sources = nlohmann::ordered_json::array();
    for (const SourceFile& source : info.sources)
        sources.push_back({{"name", shown(source.name)}, {"bytes", source.bytes}, {"hash", source.hash}});
    const nlohmann::ordered_json json = {{"model", shown(info.model_name)},
                                         {"model_path", info.model_path},
                                         {"context_length", info.model_options.context_length},
                                         {"rope_scaling", info.model_options.rope_scaling},
                                         {"rope_scale", info.model_options.rope_scale},
                                         {"reading", info.reading},
                                         {"layers", info.layers},
                                         {"kv_heads", info.kv_heads},
                                         {"head_dim", info.head_dim},
                                         {"tokens", info.tokens},
                                         {"kv_type", kv_type_name(info.kv_type)},
                                         {"method", info.method},
                                         {"explanation", info.explanation},
                                         {"budget", info.budget},
                                         {"question", info.question},
                                         {"conversation", info.conversation},
                                         {"sources", sources}};
    return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A count that the description states, below 2³¹.
int count(const nlohmann::json& json, const char* key) {
    const nlohmann::json& value = json.at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX)
        throw Error("'" + std::string(key) + "' is no count");
    return value.get<int>();
}

// A text that a terminal can show: no control characters, line breaks apart where there may be some.
std::string text_of(const nlohmann::json& json, const char* key, bool lines = false) {
    std::string text = json.at(key);
    for (char c : text)
        if ((static_cast<unsigned char>(c) < 0x20 && !(lines && c == '\n')) || c == 0x7f)
            throw Error("'" + std::string(key) + "' has control characters");
    return text;
}

ContextInfo parse_description(std::span<const std::byte> bytes, const std::string& fingerprint) {
    if (std::ranges::find(bytes, std::byte(0)) != bytes.end()) throw Error("it has zeros in it");
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    const nlohmann::json json = nlohmann::json::parse(text, text + bytes.size());
    ContextInfo info;
    info.fingerprint = fingerprint;
    info.model_name = text_of(json, "model");
    info.model_path = text_of(json, "model_path");
    info.model_options.context_length = std::uint32_t(count(json, "context_length"));
    info.model_options.rope_scaling = text_of(json, "rope_scaling");
    const double scale = json.at("rope_scale");
    if (scale != 0 && !(scale >= 1 && scale <= 1e4)) throw Error("'rope_scale' is none");
    info.model_options.rope_scale = float(scale);
    json.at("reading").get_to(info.reading);
    info.layers = count(json, "layers");
    info.kv_heads = count(json, "kv_heads");
    info.head_dim = count(json, "head_dim");
    info.tokens = std::uint32_t(count(json, "tokens"));
    info.kv_type = parse_kv_type(json.at("kv_type"));
    info.method = text_of(json, "method");
    info.explanation = text_of(json, "explanation", true);
    info.budget = text_of(json, "budget");
    info.question = json.at("question");
    info.conversation = json.at("conversation");
    for (const nlohmann::json& source : json.at("sources"))
        info.sources.push_back({text_of(source, "name"), source.at("bytes"), text_of(source, "hash")});
    return info;
}

template <typename T>
std::span<const T> as(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

void check_context_path(const std::string& path) {
    if (!path.ends_with(context_file_ending) || path == context_file_ending)
        throw Error(
            "'" + path + "' must be a name that ends in " + context_file_ending + ", so that ask knows it",
            Error::Kind::usage);
}

KvType parse_kv_type(const std::string& name) {
    for (std::size_t i = 0; i < std::size(type_names); ++i)
        if (name == type_names[i]) return KvType(i);
    throw Error("no type '" + name + "' for keys and values; there are: f16, q8_0", Error::Kind::usage);
}

const char* kv_type_name(KvType type) {
    return type_names[std::size_t(type)];
}

void complete_info(ContextInfo& info, const GgufModel& model, std::uint32_t tokens) {
    const HyperParameters& p = model.parameters();
    info.model_name = p.name;
    info.model_path = std::filesystem::absolute(model.path());
    info.fingerprint = model.fingerprint();
    info.model_options = model.options();
    info.reading = reading_of(p);
    info.layers = p.layers;
    info.kv_heads = p.kv_heads;
    info.head_dim = p.head_dim;
    info.tokens = tokens;
}

void save_context(const std::string& path, const GgufModel& model, const RaggedCache& cache,
                  std::span<const int> tokens, ContextInfo info) {
    complete_info(info, model, cache.next_position());
    std::vector<std::uint32_t> all_lengths, all_positions;
    for (int l = 0; l < cache.layers(); ++l)
        for (int h = 0; h < cache.kv_heads(); ++h) {
            const auto of_head = cache.positions(l, h);
            all_lengths.push_back(std::uint32_t(of_head.size()));
            all_positions.insert(all_positions.end(), of_head.begin(), of_head.end());
        }
    const std::string text = describe(info);

    write_whole_file(path, [&](std::ostream& stream) {
        Header header = {};
        std::memcpy(header.magic, magic, sizeof magic);
        header.version = version;
        header.sections = section_count;
        std::copy_n(info.fingerprint.begin(), 16, header.fingerprint);
        stream.write(reinterpret_cast<const char*>(&header), sizeof header);  // its place
        SectionWriter writer(stream, header);
        writer.section(description, text.data(), text.size());
        writer.section(token_ids, tokens.data(), tokens.size() * sizeof(std::int32_t));
        writer.section(head_lengths, all_lengths.data(), all_lengths.size() * sizeof(std::uint32_t));
        writer.section(head_positions, all_positions.data(), all_positions.size() * sizeof(std::uint32_t));

        const std::size_t elements = page_elements(info.head_dim), depth = std::size_t(info.head_dim);
        std::vector<fp16_t> page(elements);
        std::vector<float> expanded(elements);
        std::vector<char> stored(stored_page_bytes(info.kv_type, info.head_dim));
        writer.begin();
        for (int l = 0; l < cache.layers(); ++l)
            for (int h = 0; h < cache.kv_heads(); ++h) {
                const std::uint32_t length = cache.length(l, h);
                for (std::size_t p = 0; p < pages_for(length); ++p) {
                    std::copy_n(cache.pages(l, h)[p], elements, page.begin());
                    for (std::size_t slot = length - p * page_tokens; slot < page_tokens;
                         ++slot) {  // nothing is there
                        for (std::size_t i = 0; i < depth; ++i)
                            page_keys(page.data())[i * page_tokens + slot] = 0;
                        std::fill_n(page_values(page.data(), info.head_dim) + slot * depth, depth, fp16_t(0));
                    }
                    if (info.kv_type == KvType::f16) {
                        writer.write(page.data(), elements * sizeof(fp16_t));
                        continue;
                    }
                    std::transform(page.begin(), page.end(), expanded.begin(), fp16_to_fp32);
                    ggml_quantize_chunk(GGML_TYPE_Q8_0, expanded.data(), stored.data(), 0, 1,
                                        std::int64_t(elements), nullptr);
                    writer.write(stored.data(), stored.size());
                }
            }
        writer.end(page_data);
        header.file_bytes = writer.offset();
        header.checksum =
            checksum(std::as_bytes(std::span(&header, 1)).first(block - sizeof header.checksum));
        stream.seekp(0);
        stream.write(reinterpret_cast<const char*>(&header), sizeof header);
    });
}

ContextFile::ContextFile(const std::string& path) : path_(path), file_(std::make_shared<MappedFile>(path)) {
    const std::span<const std::byte> bytes = file_->bytes();
    const auto damaged = [&](const std::string& what) { return Error("'" + path + "': " + what); };
    if (bytes.size() < sizeof magic || std::memcmp(bytes.data(), magic, sizeof magic) != 0)
        throw damaged("no context file: holdfast compress makes them");
    if (bytes.size() < block) throw damaged("its header is cut off");
    Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.checksum != checksum(bytes.first(block - sizeof header.checksum)))
        throw damaged("its header is damaged");
    if (header.version != version)
        throw damaged("it has version " + std::to_string(header.version) +
                      " of the format, and this holdfast reads version " + std::to_string(version));
    if (header.file_bytes != bytes.size() || header.sections != section_count)
        throw damaged("it has " + std::to_string(bytes.size()) + " bytes, and its header says " +
                      std::to_string(header.file_bytes) + ": it is cut off or something was added");
    // Sections stand one behind another and fill the file: what isn't in one isn't in the file.
    std::array<std::span<const std::byte>, section_count> sections;
    std::uint64_t offset = block;
    for (int s = 0; s < section_count; ++s) {
        const SectionEntry& entry = header.entries[s];
        if (entry.offset != offset || entry.bytes > bytes.size() - offset ||
            padded(entry.bytes) > bytes.size() - offset)
            throw damaged("its header puts the section of " + std::string(section_names[std::size_t(s)]) +
                          " where it can't be");
        sections[std::size_t(s)] = bytes.subspan(offset, entry.bytes);
        if (s == page_data)
            pages_checksum_ = entry.checksum;
        else if (checksum(bytes.subspan(offset, padded(entry.bytes))) != entry.checksum)
            throw damaged("its section of " + std::string(section_names[std::size_t(s)]) + " is damaged");
        offset += padded(entry.bytes);
    }
    if (offset != bytes.size()) throw damaged("something stands behind its last section");

    // Checksums tell accidents; a file that was made to mislead can still say anything.
    try {
        info_ = parse_description(sections[description], std::string(header.fingerprint, 16));
    } catch (const std::exception& error) {
        throw damaged(std::string("its section of description says nothing that makes sense: ") +
                      error.what());
    }
    const auto inconsistent = [&](Section section) {
        return damaged("its section of " + std::string(section_names[std::size_t(section)]) +
                       " contradicts its description");
    };
    tokens_ = as<std::int32_t>(sections[token_ids]);
    lengths_ = as<std::uint32_t>(sections[head_lengths]);
    positions_ = as<std::uint32_t>(sections[head_positions]);
    pages_ = sections[page_data];
    constexpr int most = 1 << 16;
    if (info_.layers < 1 || info_.layers > most || info_.kv_heads < 1 || info_.kv_heads > most ||
        info_.head_dim < 1 || info_.head_dim > most)
        throw damaged("its section of description has impossible sizes");
    if (sections[token_ids].size() != std::size_t(info_.tokens) * sizeof(std::int32_t))
        throw inconsistent(token_ids);
    if (sections[head_lengths].size() !=
        std::size_t(info_.layers) * std::size_t(info_.kv_heads) * sizeof(std::uint32_t))
        throw inconsistent(head_lengths);
    std::size_t entries = 0, page_count = 0;
    for (std::uint32_t length : lengths_) {
        if (length > info_.tokens) throw inconsistent(head_lengths);
        entries += length;
        page_count += pages_for(length);
    }
    if (sections[head_positions].size() != entries * sizeof(std::uint32_t))
        throw inconsistent(head_positions);
    if (pages_.size() != page_count * stored_page_bytes(info_.kv_type, info_.head_dim))
        throw inconsistent(page_data);
    for (std::size_t head = 0, first = 0; head < lengths_.size(); first += lengths_[head++])
        for (std::size_t i = first; i < first + lengths_[head]; ++i)
            if (positions_[i] >= info_.tokens || (i > first && positions_[i] <= positions_[i - 1]))
                throw damaged("its section of positions isn't in order");
}

void ContextFile::check_pages() const {
    if (checksum({pages_.data(), padded(pages_.size())}) != pages_checksum_)
        throw Error("'" + path_ + "': its section of pages is damaged");
}

ReadContext ContextFile::context(const GgufModel& model) const {
    check_pages();
    const HyperParameters& p = model.parameters();
    const std::string& fingerprint = model.fingerprint();
    if (info_.fingerprint != fingerprint)
        throw Error("'" + path_ + "' was made with another model: " + info_.model_name + " (" +
                    info_.model_path + ", fingerprint " + info_.fingerprint + "), not '" + model.path() +
                    "' (" + fingerprint + ")");
    if (info_.layers != p.layers || info_.kv_heads != p.kv_heads || info_.head_dim != p.head_dim ||
        std::ranges::any_of(tokens_, [&](std::int32_t token) { return token < 0 || token >= p.vocabulary; }))
        throw Error("'" + path_ + "' doesn't fit the model that it names");
    if (info_.reading != reading_of(p) || info_.tokens > p.context_length)
        throw Error("'" + path_ + "' was made with another context length or rope scaling of the model");

    const std::size_t elements = page_elements(p.head_dim),
                      stored = stored_page_bytes(info_.kv_type, p.head_dim);
    const std::size_t page_count = pages_.size() / stored;
    const auto pool = std::make_shared<PagePool>(p.head_dim);
    PageId next = 0;
    if (info_.kv_type == KvType::f16 && page_count > 0)
        next = pool->map(file_, reinterpret_cast<const fp16_t*>(pages_.data()), page_count);
    std::vector<float> expanded(elements);
    RaggedCache cache(pool, p.layers, p.kv_heads);
    std::size_t head = 0, first = 0, read = 0;
    for (int l = 0; l < p.layers; ++l)
        for (int h = 0; h < p.kv_heads; ++h, ++head) {
            const std::uint32_t length = lengths_[head];
            std::vector<PageId> of_head;
            for (std::size_t i = 0; i < pages_for(length); ++i, ++read) {
                if (info_.kv_type == KvType::f16) {
                    of_head.push_back(next++);
                    continue;
                }
                of_head.push_back(pool->allocate());
                ggml_get_type_traits(GGML_TYPE_Q8_0)
                    ->to_float(pages_.data() + read * stored, expanded.data(), std::int64_t(elements));
                std::transform(expanded.begin(), expanded.end(), pool->address(of_head.back()), fp32_to_fp16);
            }
            const auto of_positions = positions_.subspan(first, length);
            cache.adopt(l, h, {of_positions.begin(), of_positions.end()}, std::move(of_head));
            first += length;
        }
    cache.set_next_position(info_.tokens);
    ReadReport report = report_of(p, cache);
    return {std::move(cache), std::move(report), {}};
}

}  // namespace holdfast
