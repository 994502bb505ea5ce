// How much each KV head of a model matters for retrieval: HeadKV's profile, a JSON file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace holdfast {

struct HeadProfile {
    std::string fingerprint;  // of the model that was measured
    std::string model;        // its name
    int layers = 0, kv_heads = 0;
    int prompts = 0;                 // that the model answered right
    std::vector<double> importance;  // [layers, kv_heads], sum 1
};

void write_head_profile(const HeadProfile& profile, const std::string& path);

// The profile in a file, or for an empty path the one that comes with holdfast for this model. Throws Error
// for what isn't a profile, is another model's, or for a model without one: says how to make it.
HeadProfile load_head_profile(const std::string& path, const GgufModel& model);

}  // namespace holdfast
