#pragma once

#include <string>

namespace holdfast {

// Where scripts/fetch.sh puts the default model: $XDG_CACHE_HOME/holdfast/models/, or
// ~/.cache/holdfast/models/.
std::string default_model_path();

}  // namespace holdfast
