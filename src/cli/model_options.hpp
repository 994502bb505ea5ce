// Options that the commands share to say which model is used, and how.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "holdfast/holdfast.hpp"

namespace holdfast {

// -c, --rope-scaling and --rope-scale.
void add_model_options(CLI::App* command, ModelOptions& options);
// --temp and --seed.
void add_sampling_options(CLI::App* command, Sampling& sampling);

// A model, its options and threads: -m, -t and those of add_model_options().
struct ModelChoice {
    std::string path = default_model_path();
    ModelOptions options;
    int threads = 0;

    void add(CLI::App* command);
    // Takes the model that a context file names, unless one was given, and the options that it was read with.
    // Throws Error if that model is gone, Error (usage) if options contradict.
    void choose_for(const std::string& context_file);
    // Ctrl-C interrupts whatever it computes.
    Model open() const;

  private:
    CLI::App* command_ = nullptr;
};

}  // namespace holdfast
