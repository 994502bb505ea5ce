// Options that the commands share to say which model is used, and how.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "holdfast/holdfast.hpp"

namespace holdfast {

// -m: the default model unless given.
void add_model_path(CLI::App* command, std::string& path);
// -t: as many as the machine has unless given.
void add_threads(CLI::App* command, int& threads);
// -c, --rope-scaling and --rope-scale.
void add_model_options(CLI::App* command, ModelOptions& options);
// --temp and --seed.
void add_sampling_options(CLI::App* command, Sampling& sampling);

// A model, its options and threads.
struct ModelChoice {
    std::string path;
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
