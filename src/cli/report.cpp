#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "holdfast/error.hpp"
#include "base/whole_file.hpp"
#include "cli/commands.hpp"
#include "eval/report.hpp"

namespace holdfast {

namespace {

void run(const std::string& folder) {
    const std::string results_path = folder + "/results.jsonl", manifest_path = folder + "/manifest.json";
    std::ifstream file(manifest_path);
    if (!file) throw Error("'" + folder + "' has no manifest.json: give a folder that holdfast eval wrote");
    Summary summary(read_results(results_path).results);
    if (summary.results().empty()) throw Error("'" + results_path + "' holds no results");
    try {
        const Document document = evaluation_report(summary, nlohmann::ordered_json::parse(file));
        write_whole_file(folder + "/report.html", document.html());
        write_whole_file(folder + "/report.md", document.markdown());
    } catch (const nlohmann::json::exception& error) {
        throw Error("'" + manifest_path + "' is no manifest of holdfast eval: " + error.what());
    }
    fmt::print("{0}/report.html\n{0}/report.md\n", folder);
}

}  // namespace

void add_report(CLI::App& app) {
    const auto folder = std::make_shared<std::string>();
    CLI::App* command =
        app.add_subcommand("report", "Write what an evaluation found, as a page and as Markdown");
    command->add_option("DIR", *folder, "Folder that holdfast eval wrote")->required();
    command->callback([folder] { run(*folder); });
}

}  // namespace holdfast
