#include "cli/model_options.hpp"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "cli/terminal.hpp"

namespace holdfast {

void add_model_path(CLI::App* command, std::string& path) {
    path = default_model_path();
    command->add_option("-m,--model", path, "GGUF file (default: the fetched SmolLM2-135M)");
}

void add_threads(CLI::App* command, int& threads) {
    threads = int(std::max(1u, std::thread::hardware_concurrency()));
    command->add_option("-t,--threads", threads, "Threads")->check(CLI::Range(1, 512))->capture_default_str();
}

void add_model_options(CLI::App* command, ModelOptions& options) {
    command->add_option("-c,--context", options.context_length,
                        "Context length in tokens (default: the model's own)");
    command->add_option("--rope-scaling", options.rope_scaling,
                        "none, linear or yarn: scale positions otherwise than the file says");
    command->add_option("--rope-scale", options.rope_scale, "Factor by which positions are scaled")
        ->check(CLI::Range(1.0, 1e4));
}

void add_sampling_options(CLI::App* command, Sampling& sampling) {
    command->add_option("--temp", sampling.temperature, "Temperature; 0 takes the most likely token")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    command->add_option("--seed", sampling.seed, "Seed of the sampling, with --temp")->capture_default_str();
}

void ModelChoice::add(CLI::App* command) {
    command_ = command;
    add_model_path(command, path);
    add_threads(command, threads);
    add_model_options(command, options);
}

void ModelChoice::choose_for(const std::string& context_file) {
    for (const char* name : {"--context", "--rope-scaling", "--rope-scale"})
        if (command_->count(name) > 0)
            throw Error(std::string(name) + " has no effect on '" + context_file +
                            "', which was read and compressed before",
                        Error::Kind::usage);
    const ContextInfo info = read_context_info(context_file);
    options = info.model_options;
    if (command_->count("--model") > 0) return;
    if (!std::filesystem::exists(info.model_path))
        throw Error("'" + context_file + "' was made with " + info.model_name + " in '" + info.model_path +
                    "', which isn't there; say with -m where it is now");
    path = info.model_path;
}

Model ModelChoice::open() const {
    return Model(path, options, threads, was_interrupted);
}

}  // namespace holdfast
