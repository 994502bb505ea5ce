// libllama on the same file: the independent truth for logits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace holdfast::testing {

class LlamaReference {
  public:
    // rope_scale: the factor to scale the context by; 0 is the file's own. rope_scaling: "linear", "yarn", or
    // the file's own.
    LlamaReference(const std::string& model_path, int context_length, int threads, float rope_scale = 0,
                   const std::string& rope_scaling = "");
    ~LlamaReference();

    // Appends tokens and returns the logits after the last one.
    std::vector<float> decode(std::span<const int> tokens);
    void clear();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// max |a - b| / max |b|
float relative_difference(std::span<const float> a, std::span<const float> b);

}  // namespace holdfast::testing
