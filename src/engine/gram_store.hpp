// The Gram matrices of a model's output projections, kept in the cache folder by the model's fingerprint.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "base/memory.hpp"
#include "kernels/matmul.hpp"
#include "model/compute.hpp"
#include "model/model.hpp"

namespace holdfast {

// Layers are asked for in order, once a context, sliding ones left out: `layer` counts the others. Where
// there is no file yet they are computed, and written beside: the file appears when the last layer is done. A
// folder that can't be written to costs the time to compute them again, nothing else.
class GramStore {
  public:
    GramStore(const GgufModel& model, Compute& compute, const std::string& folder);
    ~GramStore();

    // Of each query head of the layer; valid until the next call. output: makes the layer's expanded
    // projection, if there is no file.
    std::span<const PackedMatrix> layer(int layer, const std::function<PackedMatrix()>& output);

    static bool has_file(const GgufModel& model, const std::string& folder);

    static std::size_t bytes_for(const HyperParameters& parameters);  // of a layer

  private:
    void append(int layer);

    const HyperParameters& parameters_;
    Compute& compute_;
    std::string path_, temporary_;
    std::unique_ptr<MappedFile> file_;  // null: computed
    std::FILE* writing_ = nullptr;
    Buffer computed_;
    std::vector<PackedMatrix> grams_;
};

}  // namespace holdfast
