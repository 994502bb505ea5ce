#include "model/gguf_file.hpp"

#include <cstring>

#include "base/error.hpp"

namespace holdfast {

GgufFile::GgufFile(const std::string& path) : path_(path), file_(path) {
    const std::span<const std::byte> bytes = file_.bytes();
    if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
        throw Error("'" + path + "' is not a GGUF file");
    ggml_context* tensors = nullptr;
    gguf_.reset(gguf_init_from_file(path.c_str(), {true, &tensors}));
    tensors_.reset(tensors);
    if (!gguf_) throw Error("'" + path + "' is a damaged or truncated GGUF file: its header can't be read");

    const std::size_t data = gguf_get_data_offset(gguf_.get());
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
        const std::size_t size = gguf_get_tensor_size(gguf_.get(), i);
        const std::size_t offset = gguf_get_tensor_offset(gguf_.get(), i);
        if (data > bytes.size() || offset > bytes.size() - data || size > bytes.size() - data - offset)
            throw Error("'" + path + "' is truncated: tensor " + gguf_get_tensor_name(gguf_.get(), i) +
                        " lies beyond its end; fetch the file again");
        tensor_bytes_ += size;
    }
    if (tensor_bytes_ == 0) throw Error("'" + path + "' holds no tensors");
    void* base = const_cast<std::byte*>(bytes.data());
    buffer_.reset(ggml_backend_cpu_buffer_from_ptr(base, bytes.size()));
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
        ggml_tensor* tensor = ggml_get_tensor(tensors_.get(), gguf_get_tensor_name(gguf_.get(), i));
        tensor->buffer = buffer_.get();
        tensor->data = static_cast<std::byte*>(base) + data + gguf_get_tensor_offset(gguf_.get(), i);
    }
}

std::int64_t GgufFile::find(const std::string& key) const {
    return gguf_find_key(gguf_.get(), key.c_str());
}

std::optional<double> GgufFile::number(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0) return std::nullopt;
    const gguf_context* gguf = gguf_.get();
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
        default:
            throw Error("'" + path_ + "': key " + key + " is not a number");
    }
}

double GgufFile::required_number(const std::string& key) const {
    const std::optional<double> value = number(key);
    if (!value) throw Error("'" + path_ + "' lacks the key " + key);
    return *value;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0) return std::nullopt;
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_STRING)
        throw Error("'" + path_ + "': key " + key + " is not a text");
    return gguf_get_val_str(gguf_.get(), id);
}

std::optional<std::size_t> GgufFile::array_length(const std::string& key) const {
    const std::int64_t id = find(key);
    if (id < 0 || gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) return std::nullopt;
    return gguf_get_arr_n(gguf_.get(), id);
}

ggml_tensor* GgufFile::tensor(const std::string& name) const {
    return ggml_get_tensor(tensors_.get(), name.c_str());
}

std::vector<std::string> GgufFile::tensor_names() const {
    std::vector<std::string> names;
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i)
        names.emplace_back(gguf_get_tensor_name(gguf_.get(), i));
    return names;
}

}  // namespace holdfast
