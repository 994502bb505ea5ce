// The commands: each adds itself to the command line and runs when it is the one that was given.
#pragma once

#include <CLI/CLI.hpp>

namespace holdfast {

void add_analyze(CLI::App& app);
void add_ask(CLI::App& app);
void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_compress(CLI::App& app);
void add_eval(CLI::App& app);
void add_info(CLI::App& app);
void add_manual(CLI::App& app);
void add_methods(CLI::App& app);
void add_profile_heads(CLI::App& app);
void add_report(CLI::App& app);

}  // namespace holdfast
