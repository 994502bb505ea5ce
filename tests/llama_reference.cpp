#include "llama_reference.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "llama.h"

namespace holdfast::testing {

struct LlamaReference::State {
    llama_model* model = nullptr;
    llama_context* context = nullptr;
    ~State() {
        llama_free(context);
        llama_model_free(model);
    }
};

LlamaReference::LlamaReference(const std::string& model_path, int context_length, int threads,
                               float rope_scale, const std::string& rope_scaling)
    : state_(new State) {
    llama_model_params model = llama_model_default_params();
    state_->model = llama_model_load_from_file(model_path.c_str(), model);
    if (state_->model == nullptr) throw std::runtime_error("libllama can't load " + model_path);
    llama_context_params context = llama_context_default_params();
    context.n_ctx = std::uint32_t(context_length);
    context.n_batch = 512;
    if (rope_scaling == "linear") context.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_LINEAR;
    if (rope_scaling == "yarn") context.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
    if (rope_scale > 0) context.rope_freq_scale = 1 / rope_scale;
    context.n_threads = context.n_threads_batch = threads;
    // Its flash attention rounds queries and running sums to fp16.
    context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    state_->context = llama_init_from_model(state_->model, context);
    if (state_->context == nullptr) throw std::runtime_error("libllama can't make a context");
}

LlamaReference::~LlamaReference() = default;

std::vector<float> LlamaReference::decode(std::span<const int> tokens) {
    for (std::size_t i = 0; i < tokens.size(); i += 512) {
        const std::size_t count = std::min<std::size_t>(512, tokens.size() - i);
        if (llama_decode(state_->context,
                         llama_batch_get_one(const_cast<int*>(tokens.data() + i), int(count))) != 0)
            throw std::runtime_error("llama_decode failed");
    }
    const float* logits = llama_get_logits_ith(state_->context, -1);
    return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(state_->model))};
}

void LlamaReference::clear() {
    llama_memory_clear(llama_get_memory(state_->context), true);
}

float relative_difference(std::span<const float> a, std::span<const float> b) {
    float largest = 0, worst = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
        largest = std::max(largest, std::abs(b[i]));
        const float difference = std::abs(a[i] - b[i]);
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
    return worst / largest;
}

}  // namespace holdfast::testing
