// LongBench's datasets, in the published files, with its prompts, lengths and metrics (docs/evaluation.md).
#pragma once

#include <string>
#include <vector>

#include "eval/samples.hpp"

namespace holdfast {

// All 21, the 16 that aren't Chinese first.
const std::vector<std::string>& longbench_datasets();

// The first `most` samples (0: all) of FOLDER/DATASET.jsonl. Throws Error that names file and line for what
// isn't such a sample.
std::vector<Sample> read_longbench(const std::string& folder, const std::string& dataset, int most);

}  // namespace holdfast
