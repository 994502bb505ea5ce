#pragma once

#include <CLI/CLI.hpp>

#include "model/hyper_parameters.hpp"

namespace holdfast {

// -c, --rope-scaling and --rope-scale.
inline void add_model_options(CLI::App* command, ModelOptions& options) {
    command->add_option("-c,--context", options.context_length,
                        "Context length in tokens (default: the model's own)");
    command->add_option("--rope-scaling", options.rope_scaling,
                        "none, linear or yarn: scale positions otherwise than the file says");
    command->add_option("--rope-scale", options.rope_scale, "Factor by which positions are scaled")
        ->check(CLI::Range(1.0, 1e4));
}

}  // namespace holdfast
