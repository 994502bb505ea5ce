#include <fmt/format.h>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "holdfast/holdfast.hpp"
#include "base/hash.hpp"
#include "cli/commands.hpp"
#include "cli/documents.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context_file.hpp"

namespace holdfast {

namespace {

struct Options {
    ModelChoice model;
    std::vector<std::string> files;
    std::string context_file;  // compressed again instead of documents
    MethodOptions compression;
    std::string kv_type = "f16";
    std::string output;
};

Context read(const Options& options, const MethodOptions::Parsed& parsed) {
    CompressOptions how;
    const std::vector<DocumentFile> documents = read_document_files(options.files);
    for (const DocumentFile& document : documents) {
        Hash hash;
        hash.add(document.text.data(), document.text.size());
        how.sources.push_back({document.name, document.text.size(), hash.hex()});
    }
    const Model model = options.model.open();
    ProgressLine line;
    how.progress = [&](const ReadProgress& progress) {
        line.show(progress);
        return true;
    };
    return model.compress(joined_documents(documents), parsed.method, parsed.budget, how);
}

Context compress_again(Options& options, const MethodOptions::Parsed& parsed) {
    if (parsed.method.keeps_all())
        throw Error("--method full keeps everything: there is nothing to compress again", Error::Kind::usage);
    options.model.choose_for(options.context_file);
    return options.model.open().load(options.context_file).compressed(parsed.method, parsed.budget);
}

void run(Options& options) {
    const MethodOptions::Parsed parsed = options.compression.parse();
    if (options.compression.explained()) return;
    const KvType type = parse_kv_type(options.kv_type);
    if (options.files.empty() == options.context_file.empty())
        throw Error("give documents with -f (--file), or one context file with --recompress",
                    Error::Kind::usage);
    check_context_path(options.output);
    const std::filesystem::path folder = std::filesystem::absolute(options.output).parent_path();
    if (access(folder.c_str(), W_OK) != 0)  // before the work
        throw Error("cannot write into the folder '" + folder.string() + "': " + std::strerror(errno));

    const Context context =
        options.context_file.empty() ? read(options, parsed) : compress_again(options, parsed);
    context.save(options.output, type);
    const ReadReport& r = context.report();
    const std::size_t bytes = std::filesystem::file_size(options.output);
    const double seconds = r.prefill_seconds + r.compression_seconds;
    fmt::print(
        "{}: {} tokens{}, {} at {}; {} to {} kept a head, {:.1f} on average; {} ({}, {:.1f}% of the full "
        "cache)\n",
        options.output, r.tokens, seconds > 0 ? fmt::format(" in {:.2f} s", seconds) : "",
        context.info().method, context.info().budget, r.kept_least, r.kept_most, r.kept_mean,
        format_bytes(bytes), options.kv_type, 100.0 * double(bytes) / double(r.kv_bytes_full));
    if (!r.note.empty()) fmt::print(stderr, "note: {}\n", r.note);
}

}  // namespace

void add_compress(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("compress", "Read documents once and keep their compressed cache in a file");
    options->model.add(command);
    command
        ->add_option("-f,--file", options->files, "Document; several are read one after another; - is stdin")
        ->allow_extra_args(false);
    command->add_option("--recompress", options->context_file,
                        "Compress a context file further, or what a chat has added to one");
    command->add_option("-o,--output", options->output, "File to write, ending in .hfkv")->required();
    options->compression.add(command);
    command->add_option("--kv-type", options->kv_type, "f16, or q8_0 for about half the size")
        ->capture_default_str();
    command->callback([options] { run(*options); });
}

}  // namespace holdfast
