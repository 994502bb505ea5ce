#include <fmt/format.h>

#include <memory>

#include "cli/commands.hpp"
#include "holdfast/holdfast.hpp"
#include "cli/method_options.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context_file.hpp"
#include "engine/memory_plan.hpp"
#include "kernels/simd.hpp"

namespace holdfast {

namespace {

struct InfoOptions {
    std::string context_file;  // what it says instead of a model
    std::string model;
    ModelOptions model_options;
    MethodOptions compression;
    int threads = 0;
};

void print_context(const std::string& path) {
    const ContextFile file(path);
    file.check_pages();
    const ContextInfo& info = file.info();
    fmt::print("context         {}: {}, {}\n", path, format_bytes(file.bytes()), kv_type_name(info.kv_type));
    fmt::print("model           {} ({}), fingerprint {}\n", info.model_name, info.model_path,
               info.fingerprint);
    fmt::print("tokens          {}\n", info.tokens);
    for (const SourceFile& source : info.sources)
        fmt::print("source          {}: {} bytes, XXH3 {}\n", source.name, source.bytes, source.hash);
    fmt::print("compression     {} at {}, question-{}\n", info.method, info.budget,
               info.question.empty() ? "agnostic" : "aware");
    if (info.conversation) fmt::print("conversation    ends with an answer\n");
    std::uint64_t entries = 0;
    for (std::uint32_t length : file.lengths()) entries += length;
    fmt::print(
        "kept            {:.1f} tokens a head on average ({:.1f}%)\n\n{}\nkept of each layer's KV heads\n",
        double(entries) / double(file.lengths().size()),
        100.0 * double(entries) / double(file.lengths().size()) / std::max(1u, info.tokens),
        info.explanation);
    for (int l = 0; l < info.layers; ++l)
        fmt::print("  {:>5}: {}\n", l,
                   fmt::join(file.lengths().subspan(std::size_t(l) * std::size_t(info.kv_heads),
                                                    std::size_t(info.kv_heads)),
                             " "));
}

void run(const InfoOptions& options) {
    if (!options.context_file.empty()) return print_context(options.context_file);
    if (options.compression.explained()) return;
    const auto [method, budget] = options.compression.parse();
    const GgufModel model(options.model, options.model_options);
    const HyperParameters& p = model.parameters();
    const std::uint32_t tokens = p.context_length;
    const CompressionRequest request{method, budget};
    const MemoryPlan plan = plan_memory(model, tokens, {&request, 1}, default_chunk, options.threads);

    const char* scaling[] = {"none", "linear", "yarn", "longrope"};
    fmt::print("model           {} ({})\n", p.name, options.model);
    fmt::print("architecture    {}: {} layers, hidden {}, feed-forward {}, vocabulary {}\n",
               p.architecture.name, p.layers, p.hidden, p.feed_forward, p.vocabulary);
    fmt::print("attention       {} query heads, {} KV heads, head size {}\n", p.heads, p.kv_heads,
               p.head_dim);
    fmt::print("context         {} tokens, rope base {:g}, scaling {}\n", tokens, p.rope.freq_base,
               scaling[int(p.rope.scaling)]);
    if (p.global_layers() < p.layers)
        fmt::print(
            "sliding         {} of the {} layers see their last {} tokens; eviction leaves them alone\n",
            p.layers - p.global_layers(), p.layers, p.sliding_window);
    if (p.experts > 0) fmt::print("experts         {}, {} of them for a token\n", p.experts, p.experts_used);
    fmt::print("fingerprint     {}\n", model.fingerprint());
    fmt::print("instruction set {}, {} threads\n\n", current_simd_target(), options.threads);

    fmt::print("memory to read {} tokens, {}\n", tokens,
               method.keeps_all() ? "full cache" : method.name() + " at " + options.compression.budget);
    const auto line = [](const char* name, std::size_t bytes, const char* remark = "") {
        fmt::print("  {:<34}{:>12}  {}\n", name, format_bytes(bytes), remark);
    };
    line("weights, mapped", plan.weights);
    if (plan.quantized > 0) line("weights, laid out for products", plan.quantized);
    line("hidden states", plan.hidden);
    line("one layer's scratch", plan.layer_scratch());
    line("  its keys and values", plan.layer_kv);
    line("  its matrices in fp32", plan.layer_weights);
    line("  activations and observation", plan.layer_work);
    line("KV cache, full", plan.kv_full);
    line("KV cache at the budget", plan.kv_kept);
    if (plan.kv_sliding > 0) line("  windows of sliding layers", plan.kv_sliding, "in both");
    line("peak above the weights", plan.peak(), "hidden states + one layer's scratch + budget");
}

}  // namespace

void add_info(CLI::App& app) {
    const auto options = std::make_shared<InfoOptions>();
    CLI::App* command = app.add_subcommand(
        "info", "Show a model's sizes and the memory that reading takes, or what a context file holds");
    command->add_option("context", options->context_file, "Context file (.hfkv) of holdfast compress");
    add_model_path(command, options->model);
    add_model_options(command, options->model_options);
    options->compression.add(command);
    add_threads(command, options->threads);
    command->callback([options] { run(*options); });
}

}  // namespace holdfast
