// The small model that the fuzzer's contexts are of.
#pragma once

#include <filesystem>
#include <string>

#include "model_files.hpp"

namespace holdfast {

inline std::string fuzz_model_path() {
    std::string path = "fuzz_model.gguf";
    if (!std::filesystem::exists(path)) {
        testing::RandomModel model;
        model.layers = 2;
        model.hidden = 32;
        model.heads = 2;
        model.kv_heads = 1;
        model.head_dim = 16;
        model.feed_forward = 32;
        model.vocabulary = 64;
        model.context_length = 256;
        testing::write_random_model(path, model);
    }
    return path;
}

}  // namespace holdfast
