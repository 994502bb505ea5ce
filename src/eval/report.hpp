#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/summary.hpp"
#include "report/document.hpp"

namespace holdfast {

// What an evaluation found: scores, losses, differences, what was kept, speed and memory. manifest: that of
// the results' folder.
Document evaluation_report(const Summary& summary, const nlohmann::ordered_json& manifest);

}  // namespace holdfast
