#include "model/gguf_file.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {

// The path of part `index` of `count`, from that of the first; nothing if its name doesn't say which it is.
std::string path_of_part(const std::string& first, int index, int count) {
    char mark[32], other[32];
    std::snprintf(mark, sizeof mark, "-%05d-of-%05d.gguf", 1, count);
    std::snprintf(other, sizeof other, "-%05d-of-%05d.gguf", index, count);
    if (!first.ends_with(mark)) return "";
    return first.substr(0, first.size() - std::strlen(mark)) + other;
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : path_(path) {
    open_part(path);
    const int count = int(number("split.count").value_or(1));
    if (count > 1 && number("split.no").value_or(0) != 0)
        throw Error("'" + path + "' is a later part of a split model; give the first, -00001-of-" +
                    std::to_string(count));
    if (count < 1 || count > 10000)
        throw Error("'" + path + "' claims to be in " + std::to_string(count) + " parts");
    for (int i = 2; i <= count; ++i) {
        const std::string part = path_of_part(path, i, count);
        if (part.empty())
            throw Error("'" + path + "' is the first of " + std::to_string(count) +
                        " parts, and its name doesn't end in -00001-of-... as theirs do");
        open_part(part);
        const std::int64_t number_key = gguf_find_key(parts_.back().gguf.get(), "split.no");
        if (number_key < 0 || gguf_get_kv_type(parts_.back().gguf.get(), number_key) != GGUF_TYPE_UINT16 ||
            gguf_get_val_u16(parts_.back().gguf.get(), number_key) != i - 1)
            throw Error("'" + part + "' isn't part " + std::to_string(i) + ", as its name says");
    }
    if (tensor_bytes_ == 0) throw Error("'" + path + "' holds no tensors");
}

void GgufFile::open_part(const std::string& path) {
    Part part;
    part.file = std::make_unique<MappedFile>(path);
    const std::span<const std::byte> bytes = part.file->bytes();
    if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
        throw Error("'" + path + "' is not a GGUF file");
    ggml_context* tensors = nullptr;
    part.gguf.reset(gguf_init_from_file(path.c_str(), {true, &tensors}));
    part.tensors.reset(tensors);
    const gguf_context* gguf = part.gguf.get();
    if (gguf == nullptr)
        throw Error("'" + path + "' is a damaged or truncated GGUF file: its header can't be read");

    const std::size_t data = gguf_get_data_offset(gguf);
    void* base = const_cast<std::byte*>(bytes.data());
    part.buffer.reset(ggml_backend_cpu_buffer_from_ptr(base, bytes.size()));
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
        const std::size_t size = gguf_get_tensor_size(gguf, i), offset = gguf_get_tensor_offset(gguf, i);
        if (data > bytes.size() || offset > bytes.size() - data || size > bytes.size() - data - offset)
            throw Error("'" + path + "' is truncated: tensor " + gguf_get_tensor_name(gguf, i) +
                        " lies beyond its end; fetch the file again");
        tensor_bytes_ += size;
        ggml_tensor* tensor = ggml_get_tensor(tensors, gguf_get_tensor_name(gguf, i));
        tensor->buffer = part.buffer.get();
        tensor->data = static_cast<std::byte*>(base) + data + offset;
    }
    parts_.push_back(std::move(part));
}

std::int64_t GgufFile::find(const std::string& key) const {
    return gguf_find_key(keys(), key.c_str());
}

std::optional<double> GgufFile::number(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0) return std::nullopt;
    const gguf_context* gguf = keys();
    switch (gguf_get_kv_type(gguf, id)) {
        case GGUF_TYPE_UINT8:
            return gguf_get_val_u8(gguf, id);
        case GGUF_TYPE_INT8:
            return gguf_get_val_i8(gguf, id);
        case GGUF_TYPE_UINT16:
            return gguf_get_val_u16(gguf, id);
        case GGUF_TYPE_INT16:
            return gguf_get_val_i16(gguf, id);
        case GGUF_TYPE_UINT32:
            return gguf_get_val_u32(gguf, id);
        case GGUF_TYPE_INT32:
            return gguf_get_val_i32(gguf, id);
        case GGUF_TYPE_UINT64:
            return double(gguf_get_val_u64(gguf, id));
        case GGUF_TYPE_INT64:
            return double(gguf_get_val_i64(gguf, id));
        case GGUF_TYPE_FLOAT32:
            return gguf_get_val_f32(gguf, id);
        case GGUF_TYPE_FLOAT64:
            return gguf_get_val_f64(gguf, id);
        case GGUF_TYPE_BOOL:
            return gguf_get_val_bool(gguf, id);
        case GGUF_TYPE_ARRAY: {  // one number a layer
            const gguf_type type = gguf_get_arr_type(gguf, id);
            const std::size_t count = gguf_get_arr_n(gguf, id);
            if ((type != GGUF_TYPE_INT32 && type != GGUF_TYPE_UINT32) || count == 0) break;
            const auto* values = static_cast<const std::int32_t*>(gguf_get_arr_data(gguf, id));
            if (std::any_of(values, values + count, [&](std::int32_t value) { return value != values[0]; }))
                throw Error("'" + path_ + "': key " + key +
                            " differs from layer to layer, which isn't supported");
            return values[0];
        }
        default:
            break;
    }
    throw Error("'" + path_ + "': key " + key + " is not a number");
}

double GgufFile::required_number(const std::string& key) const {
    const std::optional<double> value = number(key);
    if (!value) throw Error("'" + path_ + "' lacks the key " + key);
    return *value;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0) return std::nullopt;
    if (gguf_get_kv_type(keys(), id) != GGUF_TYPE_STRING)
        throw Error("'" + path_ + "': key " + key + " is not a text");
    return gguf_get_val_str(keys(), id);
}

std::optional<std::size_t> GgufFile::array_length(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0 || gguf_get_kv_type(keys(), id) != GGUF_TYPE_ARRAY) return std::nullopt;
    return gguf_get_arr_n(keys(), id);
}

std::optional<std::vector<bool>> GgufFile::booleans(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0 || gguf_get_kv_type(keys(), id) != GGUF_TYPE_ARRAY) return std::nullopt;
    std::vector<bool> values(gguf_get_arr_n(keys(), id));
    switch (gguf_get_arr_type(keys(), id)) {
        case GGUF_TYPE_BOOL:
        case GGUF_TYPE_INT8:
        case GGUF_TYPE_UINT8:
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = static_cast<const std::int8_t*>(gguf_get_arr_data(keys(), id))[i] != 0;
            return values;
        case GGUF_TYPE_INT32:
        case GGUF_TYPE_UINT32:
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = static_cast<const std::int32_t*>(gguf_get_arr_data(keys(), id))[i] != 0;
            return values;
        default:
            throw Error("'" + path_ + "': key " + key + " is no list of truth values");
    }
}

void GgufFile::release_pages() const {
    for (const Part& part : parts_) part.file->release_pages();
}

ggml_tensor* GgufFile::tensor(const std::string& name) const {
    for (const Part& part : parts_)
        if (ggml_tensor* tensor = ggml_get_tensor(part.tensors.get(), name.c_str())) return tensor;
    return nullptr;
}

std::vector<std::string> GgufFile::tensor_names() const {
    std::vector<std::string> names;
    for (const Part& part : parts_)
        for (std::int64_t i = 0; i < gguf_get_n_tensors(part.gguf.get()); ++i)
            names.emplace_back(gguf_get_tensor_name(part.gguf.get(), i));
    return names;
}

}  // namespace holdfast
