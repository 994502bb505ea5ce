// The per-user folder for what can be made again: $XDG_CACHE_HOME/holdfast, or ~/.cache/holdfast.
#pragma once

#include <cstdlib>
#include <string>

namespace holdfast {

inline std::string cache_folder() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::string base =
        cache != nullptr && *cache != '\0' ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
    return base + "/holdfast";
}

}  // namespace holdfast
