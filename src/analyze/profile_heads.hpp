// Measures how much each KV head of a model retrieves, for HeadKV's budgets.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/head_profile.hpp"
#include "model/compute.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {

struct ProfileSettings {
    int prompts = 40;                              // at least 20
    std::uint32_t shortest = 256, longest = 1536;  // tokens of a prompt's document, about
    std::uint64_t seed = 1;
};

struct ProfileProgress {
    int done = 0, prompts = 0, right = 0;
};

// Hides a number in texts of varied length, at varied depth, and asks for it. The importance of a head is the
// attention that it puts on the number's tokens while the model repeats them, mean over its query heads, the
// tokens and the prompts that were answered right with the full cache. Throws Error if fewer than 5 were.
HeadProfile profile_heads(const GgufModel& model, const Tokenizer& tokenizer, Compute& compute,
                          const ProfileSettings& settings,
                          const std::function<void(const ProfileProgress&)>& progress = {});

}  // namespace holdfast
