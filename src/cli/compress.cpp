#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "cli/commands.hpp"
#include "cli/documents.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context_file.hpp"
#include "holdfast/engine.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {

namespace {

struct CompressOptions {
    std::string model = default_model_path();
    ModelOptions model_options;
    std::vector<std::string> files;
    MethodOptions compression;
    std::string kv_type = "f16";
    std::string output;
    int threads = int(std::max(1u, std::thread::hardware_concurrency()));
};

void run(const CompressOptions& options) {
    const MethodOptions::Parsed parsed = options.compression.parse();
    if (options.compression.explained()) return;
    ContextInfo info;
    info.kv_type = parse_kv_type(options.kv_type);
    if (!options.output.ends_with(context_file_ending))
        throw Error("'" + options.output + "' must end in " + context_file_ending + ", so that ask knows it",
                    Error::Kind::usage);
    const std::filesystem::path folder = std::filesystem::absolute(options.output).parent_path();
    if (access(folder.c_str(), W_OK) != 0)  // before the work
        throw Error("cannot write into the folder '" + folder.string() + "': " + std::strerror(errno));

    const std::vector<DocumentFile> documents = read_document_files(options.files);
    for (const DocumentFile& document : documents) {
        Hash hash;
        hash.add(document.text.data(), document.text.size());
        info.sources.push_back({document.name, document.text.size(), hash.hex()});
    }
    info.method = parsed.method.name();
    info.explanation = parsed.method.explain();
    info.budget = parsed.method.keeps_all() ? "100%" : parsed.budget.name();

    const Model model(options.model, options.model_options);
    const Tokenizer tokenizer(options.model);
    Compute compute(options.threads, &interrupted);
    const std::vector<int> tokens = tokenizer.prompt(joined_documents(documents), "").context;
    ReadSettings settings;
    settings.method = parsed.method;
    settings.budget = parsed.budget;
    ProgressLine line;
    const Context context =
        read_context(model, compute, tokens, settings, [&](const ReadProgress& p) { line.show(p); });
    save_context(options.output, model, context, tokens, info);
    line.clear();
    const ReadReport& r = context.report;
    const std::size_t bytes = std::filesystem::file_size(options.output);
    fmt::print(
        "{}: {} tokens in {:.2f} s, {} at {}; {} to {} kept a head, {:.1f} on average; {} ({}, {:.1f}% of "
        "the full cache)\n",
        options.output, r.tokens, r.prefill_seconds + r.compression_seconds, info.method, info.budget,
        r.kept_least, r.kept_most, r.kept_mean, format_bytes(bytes), options.kv_type,
        100.0 * double(bytes) / double(r.plan.kv_full));
    if (!r.note.empty()) fmt::print(stderr, "note: {}\n", r.note);
}

}  // namespace

void add_compress(CLI::App& app) {
    const auto options = std::make_shared<CompressOptions>();
    CLI::App* command =
        app.add_subcommand("compress", "Read documents once and keep their compressed cache in a file");
    command->add_option("-m,--model", options->model, "GGUF file (default: the fetched SmolLM2-135M)");
    command
        ->add_option("-f,--file", options->files, "Document; several are read one after another; - is stdin")
        ->allow_extra_args(false)
        ->required();
    command->add_option("-o,--output", options->output, "File to write, ending in .hfkv")->required();
    options->compression.add(command);
    command->add_option("--kv-type", options->kv_type, "f16, or q8_0 for about half the size")
        ->capture_default_str();
    command->add_option("-t,--threads", options->threads, "Threads")
        ->check(CLI::Range(1, 512))
        ->capture_default_str();
    add_model_options(command, options->model_options);
    command->callback([options] { run(*options); });
}

}  // namespace holdfast
