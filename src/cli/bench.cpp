#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "holdfast/error.hpp"
#include "base/clock.hpp"
#include "base/whole_file.hpp"
#include "cli/commands.hpp"
#include "cli/model_options.hpp"
#include "cli/terminal.hpp"
#include "engine/context.hpp"
#include "kernels/simd.hpp"
#include "model/decoder_graph.hpp"
#include "model/hyper_parameters.hpp"

namespace holdfast {

namespace {

struct BenchOptions {
    std::string model;
    std::vector<std::string> contexts = {"1k", "4k", "16k"};
    std::vector<std::string> budgets = {"100%", "20%", "5%"};
    std::string method = "layer-defensive";
    std::vector<std::string> settings;
    int decoded = 32;
    int repetitions = 1;
    int threads = 0;
    std::string output;
};

// One reading at one budget.
struct Sample {
    double prefill_seconds, compression_seconds;
    double decode_seconds;  // of a token, median
    std::size_t peak_bytes, kv_bytes;
};

double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// "4096", "4k"
std::uint32_t parse_tokens(const std::string& text) {
    std::uint32_t tokens = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
    const std::string rest(end, text.data() + text.size());
    if (error != std::errc() || tokens == 0 || (!rest.empty() && rest != "k") || tokens > (1u << 24))
        throw Error("no number of tokens: '" + text + "'; write 4096 or 4k", Error::Kind::usage);
    return rest == "k" ? tokens * 1024 : tokens;
}

CompressionRequest parse_budget(const std::string& text, const BenchOptions& options) {
    const Budget budget = Budget::parse(text);
    if (budget.fraction && budget.value >= 1) return {Method::full(), Budget::everything()};
    return {Method::parse(options.method, options.settings), budget};
}

double decode(DecoderGraph& decoder, const RaggedCache& context, int tokens, std::mt19937& random,
              int vocabulary) {
    RaggedCache cache(context);
    std::vector<double> seconds;
    for (int i = 0; i <= tokens; ++i) {
        const int token = int(random() % std::uint32_t(vocabulary));
        const Stopwatch watch;
        decoder.run({&token, 1}, cache);
        if (i > 0) seconds.push_back(watch.seconds());  // the first one copies pages and builds the graph
    }
    return median(std::move(seconds));
}

std::vector<Sample> measure(const GgufModel& model, Compute& compute, std::uint32_t tokens,
                            const std::vector<CompressionRequest>& requests, int decoded) {
    const int vocabulary = model.parameters().vocabulary;
    std::mt19937 random(1);
    std::vector<int> text(tokens);
    for (int& token : text) token = int(random() % std::uint32_t(vocabulary));
    ProgressLine line;
    const std::vector<ReadContext> contexts =
        read_contexts(model, compute, text, requests, [&](const ReadProgress& p) { line.show(p); });
    line.clear();
    DecoderGraph decoder(model, compute);
    std::vector<Sample> samples;
    for (const ReadContext& context : contexts)
        samples.push_back({context.report.prefill_seconds, context.report.compression_seconds,
                           decode(decoder, context.cache, decoded, random, vocabulary),
                           context.report.peak_bytes, context.report.kv_bytes});
    return samples;
}

void run(const BenchOptions& options) {
    std::vector<std::uint32_t> contexts;
    for (const std::string& text : options.contexts) contexts.push_back(parse_tokens(text));
    std::vector<CompressionRequest> requests;
    for (const std::string& text : options.budgets) requests.push_back(parse_budget(text, options));

    const std::uint32_t trained = read_hyper_parameters(GgufFile(options.model)).context_length;
    Compute compute(options.threads, was_interrupted);
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    bool headed = false;
    for (const std::uint32_t tokens : contexts) {
        ModelOptions how;
        const std::uint32_t needed = tokens + std::uint32_t(options.decoded) + 1;
        const bool beyond = needed > trained;
        if (beyond) how = {needed, "linear", 0};
        const GgufModel model(options.model, how);
        if (!headed) {
            fmt::print("{}, {} threads, {}, {}\n", model.parameters().name, options.threads,
                       current_simd_target(), options.method);
            fmt::print("{:>8} {:>7} {:>18} {:>12} {:>18} {:>10}{}\n", "context", "budget",
                       "prefill, tokens/s", "compression", "decode, tokens/s", "KV cache",
                       requests.size() == 1 ? "  peak memory" : "");
            headed = true;
        }
        std::vector<std::vector<Sample>> samples;  // [repetition][request]
        for (int r = 0; r < options.repetitions; ++r)
            samples.push_back(measure(model, compute, tokens, requests, options.decoded));
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const auto of = [&](const auto& field) {
                std::vector<double> values;
                for (const std::vector<Sample>& repetition : samples) values.push_back(field(repetition[i]));
                return values;
            };
            const std::vector<double> prefill =
                of([&](const Sample& s) { return tokens / s.prefill_seconds; });
            const std::vector<double> rate = of([](const Sample& s) { return 1 / s.decode_seconds; });
            const double share =
                median(of([](const Sample& s) { return s.compression_seconds / s.prefill_seconds; }));
            const Sample& last = samples.back()[i];
            fmt::print("{:>8} {:>7} {:>18.1f} {:>11.1f}% {:>18.1f} {:>10}{}{}\n", tokens, options.budgets[i],
                       median(prefill), 100 * share, median(rate), format_bytes(last.kv_bytes),
                       requests.size() == 1 ? fmt::format("  {:>11}", format_bytes(last.peak_bytes)) : "",
                       beyond ? "  beyond what the model was trained for: speed only" : "");
            nlohmann::ordered_json row = {
                {"model", model.parameters().name},
                {"threads", options.threads},
                {"kernels", current_simd_target()},
                {"context", tokens},
                {"beyond_training", beyond},
                {"method", requests[i].method.name()},
                {"budget", options.budgets[i]},
                {"prefill_tokens_per_second", prefill},
                {"compression_seconds", of([](const Sample& s) { return s.compression_seconds; })},
                {"decode_tokens_per_second", rate},
                {"kv_bytes", last.kv_bytes}};
            if (requests.size() == 1) row["peak_bytes"] = last.peak_bytes;
            results.push_back(row);
        }
    }
    if (!options.output.empty()) write_whole_file(options.output, results.dump(1) + "\n");
}

}  // namespace

void add_bench(CLI::App& app) {
    const auto options = std::make_shared<BenchOptions>();
    CLI::App* command = app.add_subcommand("bench", "Measure reading, compressing and decoding");
    add_model_path(command, options->model);
    command->add_option("--contexts", options->contexts, "Lengths in tokens, separated by commas: 4096 or 4k")
        ->delimiter(',')
        ->capture_default_str();
    command->add_option("--budgets", options->budgets, "Budgets, separated by commas; 100% is the full cache")
        ->delimiter(',')
        ->capture_default_str();
    command->add_option("--method", options->method, "How what is kept is chosen, below 100%")
        ->capture_default_str();
    command->add_option("--set", options->settings, "A parameter of the method, name=value")
        ->allow_extra_args(false);
    command->add_option("-n,--tokens", options->decoded, "Tokens to decode")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    command
        ->add_option("-r,--repetitions", options->repetitions, "Readings of each context; medians are shown")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    add_threads(command, options->threads);
    command->add_option("--json", options->output, "File for all figures");
    command->callback([options] { run(*options); });
}

}  // namespace holdfast
