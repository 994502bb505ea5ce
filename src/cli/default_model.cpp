#include "cli/default_model.hpp"

#include <cstdlib>

namespace holdfast {

std::string default_model_path() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::string base =
        cache != nullptr && *cache != '\0' ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
    return base + "/holdfast/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace holdfast
