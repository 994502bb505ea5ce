#include <fmt/format.h>

#include <memory>

#include "holdfast/error.hpp"
#include "cli/commands.hpp"
#include "holdfast/method.hpp"

namespace holdfast {

namespace {

struct MethodsOptions {
    std::string name;
    std::vector<std::string> settings;
};

template <class Part>
void print_parts(const char* title, const std::vector<Part>& parts) {
    fmt::print("\n{:<20}  {:<65}  {:<51}  {}\n", title, "what it is", "cost per layer: time; memory",
               "source");
    for (const MethodPart& part : parts)
        fmt::print("  {:<18}  {:<65}  {:<51}  {}\n", part.name, part.description, part.cost, part.source);
}

void run(const MethodsOptions& options) {
    if (!options.name.empty()) {
        fmt::print("{}", Method::parse(options.name, options.settings).explain());
        return;
    }
    if (!options.settings.empty()) throw Error("--set needs the name of a method", Error::Kind::usage);
    fmt::print("{:<20}  {:<34}  {}\n", "method", "parts", "source");
    for (const NamedMethod& method : named_methods())
        fmt::print("  {:<18}  {:<34}  {}\n", method.name, method.parts, method.source);
    fmt::print(
        "  or scorer[+aggregation][+critical][+allocation]; without them: mean, no refinement, uniform\n");
    print_parts("scorer", scorer_parts());
    print_parts("aggregation", aggregation_parts());
    print_parts("refinement", refinement_parts());
    print_parts("allocation", allocator_parts());
    fmt::print(
        "\nparameters, set with --set name=value; `holdfast methods NAME` shows which a method uses\n");
    for (const std::string& line : parameter_help()) fmt::print("  {}\n", line);
    fmt::print("\nn tokens, w window, d head size, D hidden size, G query heads of a KV head\n");
}

}  // namespace

void add_methods(CLI::App& app) {
    const auto options = std::make_shared<MethodsOptions>();
    CLI::App* command = app.add_subcommand("methods", "List the eviction methods, or explain one");
    command->add_option("name", options->name, "A method, by name or written out");
    command->add_option("--set", options->settings, "A parameter of the method, name=value")
        ->allow_extra_args(false);
    command->callback([options] { run(*options); });
}

}  // namespace holdfast
