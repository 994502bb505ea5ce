#include "cli/default_model.hpp"

#include "engine/cache_folder.hpp"

namespace holdfast {

std::string default_model_path() {
    return cache_folder() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace holdfast
