#include "engine/gram_store.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "holdfast/error.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {

namespace {

// In front of the layers; a page long, so that they are aligned in the mapping.
struct Header {
    char magic[8] = {'H', 'F', 'G', 'R', 'A', 'M', '1', 0};
    char fingerprint[16] = {};
    char rest[4096 - 24] = {};
};

Header header_of(const GgufModel& model) {
    Header header;
    std::memcpy(header.fingerprint, model.fingerprint().data(), sizeof header.fingerprint);
    return header;
}

std::string path_of(const GgufModel& model, const std::string& folder) {
    return folder + "/" + model.fingerprint() + ".gram";
}

// Null if there is no file, or a foreign or unfinished one.
std::unique_ptr<MappedFile> open_grams(const GgufModel& model, const std::string& folder) {
    const HyperParameters& p = model.parameters();
    const std::string path = path_of(model, folder);
    const std::size_t bytes = sizeof(Header) + GramStore::bytes_for(p) * std::size_t(p.global_layers());
    std::error_code error;
    if (std::filesystem::file_size(path, error) != bytes || error) return nullptr;
    try {
        auto file = std::make_unique<MappedFile>(path);
        const Header header = header_of(model);
        if (std::memcmp(file->bytes().data(), &header, sizeof header) == 0) return file;
    } catch (const Error&) {
    }
    return nullptr;
}

}  // namespace

GramStore::GramStore(const GgufModel& model, Compute& compute, const std::string& folder)
    : parameters_(model.parameters()),
      compute_(compute),
      path_(path_of(model, folder)),
      file_(open_grams(model, folder)) {
    grams_.resize(std::size_t(parameters_.heads));
    if (file_) return;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    temporary_ = path_ + ".XXXXXX";
    const int descriptor = ::mkstemp(temporary_.data());
    if (descriptor < 0) return;
    writing_ = ::fdopen(descriptor, "wb");
    const Header header = header_of(model);
    std::fwrite(&header, sizeof header, 1, writing_);
}

bool GramStore::has_file(const GgufModel& model, const std::string& folder) {
    return open_grams(model, folder) != nullptr;
}

GramStore::~GramStore() {
    if (writing_ == nullptr) return;
    std::fclose(writing_);
    std::remove(temporary_.c_str());
}

std::size_t GramStore::bytes_for(const HyperParameters& p) {
    return std::size_t(p.heads) * PackedMatrix::elements(p.head_dim, p.head_dim) * sizeof(float);
}

std::span<const PackedMatrix> GramStore::layer(int layer, const std::function<PackedMatrix()>& output) {
    const int d = parameters_.head_dim;
    const std::size_t each = PackedMatrix::elements(d, d);
    const float* panels = nullptr;
    if (file_) {
        panels = reinterpret_cast<const float*>(file_->bytes().data() + sizeof(Header) +
                                                std::size_t(layer) * bytes_for(parameters_));
    } else {
        computed_.reserve(bytes_for(parameters_));
        const PackedMatrix projection = output();
        compute_.parallel(parameters_.heads, [&](int head, int) {
            pack_gram(projection, head, d, computed_.as<float>() + std::size_t(head) * each);
        });
        panels = computed_.as<float>();
        append(layer);
    }
    for (std::size_t head = 0; head < grams_.size(); ++head) grams_[head] = {panels + head * each, d, d};
    return grams_;
}

void GramStore::append(int layer) {
    if (writing_ == nullptr) return;
    const bool written = std::fwrite(computed_.as<std::byte>(), bytes_for(parameters_), 1, writing_) == 1;
    if (written && layer + 1 < parameters_.global_layers()) return;
    const bool complete = std::fclose(writing_) == 0 && written;
    writing_ = nullptr;
    if (!complete || std::rename(temporary_.c_str(), path_.c_str()) != 0) std::remove(temporary_.c_str());
}

}  // namespace holdfast
