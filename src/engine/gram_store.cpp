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

}  // namespace

GramStore::GramStore(const GgufModel& model, Compute& compute, const std::string& folder)
    : parameters_(model.parameters()), compute_(compute) {
    const std::string& fingerprint = model.fingerprint();
    Header header;
    std::memcpy(header.fingerprint, fingerprint.data(), sizeof header.fingerprint);
    path_ = folder + "/" + fingerprint + ".gram";
    grams_.resize(std::size_t(parameters_.heads));

    std::error_code error;
    const std::size_t bytes =
        sizeof header + bytes_for(parameters_) * std::size_t(parameters_.global_layers());
    if (std::filesystem::file_size(path_, error) == bytes && !error) {
        try {
            file_ = std::make_unique<MappedFile>(path_);
            if (std::memcmp(file_->bytes().data(), &header, sizeof header) == 0) return;
        } catch (const Error&) {
        }
        file_.reset();
    }
    std::filesystem::create_directories(folder, error);
    temporary_ = path_ + ".XXXXXX";
    const int descriptor = ::mkstemp(temporary_.data());
    if (descriptor < 0) return;
    writing_ = ::fdopen(descriptor, "wb");
    std::fwrite(&header, sizeof header, 1, writing_);
}

GramStore::~GramStore() {
    if (writing_ == nullptr) return;
    std::fclose(writing_);
    std::remove(temporary_.c_str());
}

std::size_t GramStore::bytes_for(const HyperParameters& p) {
    return std::size_t(p.heads) * PackedMatrix::elements(p.head_dim, p.head_dim) * sizeof(float);
}

std::span<const PackedMatrix> GramStore::layer(int layer, const PackedMatrix& output) {
    const int d = parameters_.head_dim;
    const std::size_t each = PackedMatrix::elements(d, d);
    const float* panels = nullptr;
    if (file_) {
        panels = reinterpret_cast<const float*>(file_->bytes().data() + sizeof(Header) +
                                                std::size_t(layer) * bytes_for(parameters_));
    } else {
        computed_.reserve(bytes_for(parameters_));
        compute_.parallel(parameters_.heads, [&](int head, int) {
            pack_gram(output, head, d, computed_.as<float>() + std::size_t(head) * each);
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
