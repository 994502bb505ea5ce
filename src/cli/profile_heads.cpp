#include "analyze/profile_heads.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "holdfast/error.hpp"
#include "cli/commands.hpp"
#include "holdfast/holdfast.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"

namespace holdfast {

namespace {

struct ProfileOptions {
    std::string model;
    std::string output;
    ProfileSettings settings;
    int threads = 0;
};

void run(const ProfileOptions& options) {
    // Before the work, not behind it.
    if (std::filesystem::is_directory(options.output) || !std::ofstream(options.output + ".part"))
        throw Error("cannot write '" + options.output + "'");
    std::remove((options.output + ".part").c_str());
    const GgufModel model(options.model);
    const Tokenizer tokenizer(options.model);
    Compute compute(options.threads, was_interrupted);
    const bool terminal = isatty(STDERR_FILENO) == 1;
    const HeadProfile profile =
        profile_heads(model, tokenizer, compute, options.settings, [&](const ProfileProgress& p) {
            if (terminal)
                fmt::print(stderr, "\r\033[Kprompt {}/{}, {} answered right{}", p.done, p.prompts, p.right,
                           p.done == p.prompts ? "\r\033[K" : "");
        });
    write_head_profile(profile, options.output);
    fmt::print("{}: {} layers, {} KV heads, from {} of {} prompts that the model answered right\n",
               options.output, profile.layers, profile.kv_heads, profile.prompts, options.settings.prompts);
}

}  // namespace

void add_profile_heads(CLI::App& app) {
    const auto options = std::make_shared<ProfileOptions>();
    CLI::App* command = app.add_subcommand(
        "profile-heads", "Measure how much each head of a model retrieves, for the method headkv");
    add_model_path(command, options->model);
    command->add_option("-o,--output", options->output, "File to write")->required();
    command->add_option("--prompts", options->settings.prompts, "Needle prompts")
        ->check(CLI::Range(20, 10000))
        ->capture_default_str();
    command->add_option("--longest", options->settings.longest, "Tokens of the longest prompt")
        ->check(CLI::Range(256, 1 << 20))
        ->capture_default_str();
    command->add_option("--seed", options->settings.seed, "Seed of the prompts")->capture_default_str();
    add_threads(command, options->threads);
    command->callback([options] { run(*options); });
}

}  // namespace holdfast
