// golden_check [-m MODEL] FILE...: compares holdfast with the choices of the published implementation.
//
// A file of synthetic layers (docs/methods/golden-files.md) is checked entry by entry. A file with the
// tokens of a real document is read with the model. An entry that nothing here computes fails. The last line
// is "N passed, N failed"; the exit status is 1 if one failed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

#include "cache/ragged_cache.hpp"
#include "holdfast/holdfast.hpp"
#include "engine/context.hpp"
#include "evict/allocators.hpp"
#include "evict/compression.hpp"
#include "evict/observer.hpp"
#include "kernels/attention.hpp"
#include "model/decoder_graph.hpp"
#include "safetensors.hpp"
#include "text/tokenizer.hpp"

namespace holdfast::testing {

namespace {

int passed = 0, failed = 0;

void report(bool good, const std::string& entry, const std::string& detail) {
    ++(good ? passed : failed);
    fmt::print("{} {:<44} {}\n", good ? "pass" : "FAIL", entry, detail);
}

// Both were computed in fp32 from the same inputs, in different orders.
void compare_values(const std::string& entry, std::span<const float> ours, std::span<const float> golden) {
    if (ours.size() != golden.size()) return report(false, entry, "wrong size");
    float largest = 0, worst = 0;
    for (std::size_t i = 0; i < golden.size(); ++i) {
        largest = std::max(largest, std::abs(golden[i]));
        const float difference = std::abs(ours[i] - golden[i]);
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
    report(worst <= 2e-5f * largest, entry,
           fmt::format("largest difference {:.1e} of {:.3g}", worst, largest));
}

// The layers of a synthetic file. Each method goes through all of them, as in a prefill.
class SyntheticLayers {
  public:
    SyntheticLayers(const Safetensors& file, Compute& compute)
        : file_(file),
          observer_([&compute](int count,
                               const std::function<void(int, int)>& task) { compute.parallel(count, task); },
                    compute.threads()) {
        shape_.layers = number("layers");
        shape_.kv_heads = number("kv_heads");
        shape_.group = number("group");
        shape_.head_dim = number("head_dim");
        shape_.tokens = std::uint32_t(number("n"));
        shape_.scale = 1.0f / std::sqrt(float(shape_.head_dim));
        window_ = std::uint32_t(number("window"));
        budget_ = {std::stod(file.metadata("keep")), true};
        for (int l = 0; l < shape_.layers; ++l) layers_.push_back(std::make_unique<Layer>(*this, l));
    }

    void check() {
        for (int l = 0; l < shape_.layers; ++l) check_layer(l);
        for (const auto& [entry, method] :
             std::vector<std::pair<std::string, std::string>>{{"snapkv", "snapkv"},
                                                              {"tova", "tova"},
                                                              {"knorm", "knorm"},
                                                              {"keydiff", "keydiff"},
                                                              {"streaming", "streaming"},
                                                              {"pyramidkv", "pyramidkv"},
                                                              {"ada-snapkv", "adakv"},
                                                              {"critical-snapkv", "critical-snapkv"},
                                                              {"critical-ada-snapkv", "critical-adakv"},
                                                              {"defensive.corrected", "defensive"},
                                                              {"layer-defensive", "layer-defensive"}})
            check_method(entry, method, false);
        check_method("defensive.reference", "defensive", true);
        for (const auto& [name, entry] : file_.entries().items())
            if (!checked_.contains(name)) report(false, name, "nothing here computes it");
    }

  private:
    // What one layer of the file holds, in the forms that the kernels take.
    struct Layer {
        RaggedCache cache;
        std::vector<float> queries, panels;
        ObservedLayer observed;

        Layer(SyntheticLayers& file, int index)
            : cache(std::make_shared<PagePool>(file.shape_.head_dim), 1, file.shape_.kv_heads) {
            const LayerShape& s = file.shape_;
            const std::string prefix = "layer" + std::to_string(index) + ".";
            queries = file.golden(prefix + "Q");
            const std::vector<float> k = file.golden(prefix + "K"), v = file.golden(prefix + "V"),
                                     wo = file.golden(prefix + "Wo");
            cache.append(0, 0, s.tokens);
            for (int h = 0; h < s.kv_heads; ++h)
                for (std::uint32_t j = 0; j < s.tokens; ++j) {
                    const std::size_t at = s.at(h, j) * std::size_t(s.head_dim);
                    cache.write(0, h, j, k.data() + at, v.data() + at);
                }
            const int hidden = file.number("hidden"), inputs = s.heads() * s.head_dim;
            panels.resize(PackedMatrix::elements(hidden, inputs));
            std::vector<float> scratch(std::size_t(32) * std::size_t(inputs));
            const PackedMatrix projection{panels.data(), hidden, inputs};
            observed.output = [projection] { return projection; };
            for (int i = 0; i < projection.panel_count(); ++i)
                pack_panel(
                    panels.data(), i, hidden, inputs,
                    [&](int row, float* to) {
                        std::copy_n(wo.data() + std::size_t(row) * std::size_t(inputs), inputs, to);
                    },
                    scratch.data());
            observed.shape = s;
            observed.shape.layer = index;
            for (int h = 0; h < s.kv_heads; ++h) observed.pages.push_back(cache.pages(0, h));
            observed.window = file.window_;
            observed.window_queries = queries.data();
        }
    };

    int number(const char* key) const { return std::stoi(file_.metadata(key)); }

    std::vector<float> golden(const std::string& name) {
        checked_.insert(name);
        return file_.read<float>(name);
    }

    void check_layer(int l) {
        const std::string prefix = "layer" + std::to_string(l) + ".";
        check_attention(prefix, layers_[std::size_t(l)]->observed);
        observer_.show(layers_[std::size_t(l)]->observed);
        compare_values(prefix + "vnorm", observer_.value_norms(ValueNorm::exact), golden(prefix + "vnorm"));
        const WindowSummary& window = observer_.window(window_, number("kernel"));
        const float corrected = float(window.mass), reference = float(window.reference_mass);
        compare_values(prefix + "window_mass.corrected", {&corrected, 1},
                       golden(prefix + "window_mass.corrected"));
        compare_values(prefix + "window_mass.reference", {&reference, 1},
                       golden(prefix + "window_mass.reference"));
        checked_.insert(prefix + "budget.pyramidkv");
        const std::uint32_t tokens =
            pyramid_tokens(l, shape_.layers, shape_.tokens, budget_.tokens_per_head(shape_.tokens), window_,
                           std::stod(file_.metadata("pyramid_beta")));
        const std::int64_t expected = file_.read<std::int64_t>(prefix + "budget.pyramidkv").at(0);
        report(tokens == expected, prefix + "budget.pyramidkv", fmt::format("{} tokens", tokens));
    }

    void check_attention(const std::string& prefix, const ObservedLayer& layer) {
        const std::size_t stride = pages_for(shape_.tokens) * page_tokens, d = std::size_t(shape_.head_dim);
        std::vector<float> row(stride), workspace(attention_workspace(1, shape_.head_dim)), query(d), all;
        for (int h = 0; h < shape_.heads(); ++h)
            for (std::uint32_t i = 0; i < window_; ++i) {
                const float* from = layer.window_queries + (std::size_t(h) * window_ + i) * d;
                std::transform(from, from + d, query.begin(), [&](float x) { return x * shape_.scale; });
                AttentionTask task;
                task.rows = 1;
                task.head_dim = shape_.head_dim;
                task.query = query.data();
                task.pages = layer.pages[std::size_t(h / shape_.group)];
                task.slot_end = shape_.tokens;
                score_slots(task, row.data(), stride, workspace.data());
                softmax_row(row.data(), shape_.tokens - window_ + i + 1, shape_.tokens);
                all.insert(all.end(), row.begin(), row.begin() + shape_.tokens);
            }
        compare_values(prefix + "window_attention", all, golden(prefix + "window_attention"));
    }

    // The settings of the file that a method uses.
    Method method_of_file(const std::string& name, bool reference) const {
        std::vector<std::string> settings;
        const std::string usage = Method::parse(name).explain();
        for (const auto& [parameter, key] :
             std::vector<std::pair<std::string, std::string>>{{"window", "window"},
                                                              {"kernel", "kernel"},
                                                              {"sinks", "sinks"},
                                                              {"alpha", "alpha_safeguard"},
                                                              {"beta", "pyramid_beta"},
                                                              {"first-stage", "first_stage_ratio"},
                                                              {"epsilon", "epsilon"}})
            if (usage.find("\n  " + parameter + "=") != std::string::npos)
                settings.push_back(parameter + "=" + file_.metadata(key));
        if (reference) settings.push_back("reference=on");
        return Method::parse(name, settings);
    }

    // entry: the name of the method in the file. Its keep entries, and its scores if the file has them.
    void check_method(const std::string& entry, const std::string& name, bool reference) {
        if (!file_.has("layer0.keep." + entry)) return;
        const Method method = method_of_file(name, reference);
        Compression compression(method, budget_, shape_);
        std::vector<std::vector<std::uint32_t>> kept(std::size_t(shape_.layers * shape_.kv_heads));
        std::vector<float> scores, refined;  // of all layers
        for (int l = 0; l < shape_.layers; ++l) {
            for (int h = 0; h < shape_.kv_heads; ++h) {
                auto& list = kept[std::size_t(l * shape_.kv_heads + h)];
                list.resize(shape_.tokens);
                std::iota(list.begin(), list.end(), 0u);
            }
            observer_.show(layers_[std::size_t(l)]->observed);
            compression.finish_layer(observer_,
                                     [&](int layer, int head, std::span<const std::uint32_t> slots) {
                                         auto& list = kept[std::size_t(layer * shape_.kv_heads + head)];
                                         for (std::size_t i = 0; i < slots.size(); ++i)
                                             list[i] = list[slots[i]];
                                         list.resize(slots.size());
                                     });
            scores.insert(scores.end(), compression.scores().begin(), compression.scores().end());
            const std::span<const float> norms = observer_.value_norms(ValueNorm::exact);
            for (std::size_t i = 0; i < norms.size(); ++i)
                refined.push_back((compression.scores()[i] + float(method.settings().epsilon)) * norms[i]);
            if (name == "snapkv" || name == "defensive") check_scores(l, name, entry, compression);
        }
        std::vector<std::uint8_t> expected, ours(kept.size() * shape_.tokens);
        for (int l = 0; l < shape_.layers; ++l) {
            const std::string keep = "layer" + std::to_string(l) + ".keep." + entry;
            checked_.insert(keep);
            const auto layer = file_.read<std::uint8_t>(keep);
            expected.insert(expected.end(), layer.begin(), layer.end());
        }
        for (std::size_t h = 0; h < kept.size(); ++h)
            for (std::uint32_t j : kept[h]) ours[h * shape_.tokens + j] = 1;
        compare_kept("keep." + entry, ours, expected, method, scores, refined);
    }

    // The published code gives forced tokens the layer's highest score, snapkv one more than that.
    void check_scores(int l, const std::string& name, const std::string& entry,
                      const Compression& compression) {
        const std::string golden_name =
            "layer" + std::to_string(l) + ".score." + (name == "snapkv" ? name : entry);
        std::vector<float> scores(compression.scores().begin(), compression.scores().end());
        float highest = 0;
        const std::uint32_t past = shape_.tokens - window_;
        for (std::size_t i = 0; i < scores.size(); ++i)
            if (i % shape_.tokens < past) highest = std::max(highest, scores[i]);
        for (std::size_t i = 0; i < scores.size(); ++i)
            if (i % shape_.tokens >= past) scores[i] = name == "snapkv" ? highest + 1 : highest;
        compare_values(golden_name, scores, golden(golden_name));
    }

    // Sets may differ in entries whose scores differ by no more than rounding: all that differ in a layer (of
    // the whole model with `layer`) must have nearly the same score, or in the second stage of critical
    // nearly the same refined one.
    void compare_kept(const std::string& entry, std::span<const std::uint8_t> ours,
                      std::span<const std::uint8_t> golden, const Method& method,
                      std::span<const float> scores, std::span<const float> refined) const {
        if (ours.size() != golden.size()) return report(false, entry, "wrong size");
        const std::size_t unit = method.whole_model() ? golden.size() : shape_.entries();
        std::size_t kept = 0, ties = 0, differences = 0;
        for (std::size_t begin = 0; begin < golden.size(); begin += unit) {
            std::vector<std::size_t> differing;
            for (std::size_t i = begin; i < begin + unit; ++i) {
                kept += golden[i];
                if (bool(ours[i]) != bool(golden[i])) differing.push_back(i);
            }
            const auto alike = [&](std::span<const float> values) {
                float low = INFINITY, high = -INFINITY;
                for (std::size_t i : differing)
                    low = std::min(low, values[i]), high = std::max(high, values[i]);
                return high - low <= 1e-6f * std::max(std::abs(low), std::abs(high));
            };
            const bool tied = differing.empty() || alike(scores) ||
                              (method.critical() == Critical::two_stage && alike(refined));
            (tied ? ties : differences) += differing.size();
        }
        report(differences == 0, entry, fmt::format("{} kept, {} differ, {} ties", kept, differences, ties));
    }

    const Safetensors& file_;
    LayerShape shape_;
    std::uint32_t window_ = 0;
    Budget budget_;
    Observer observer_;
    std::set<std::string> checked_;
    std::vector<std::unique_ptr<Layer>> layers_;
};

// The document's tokens, behind the end of what our chat prompt opens with (the file leaves the system turn
// out).
void check_tokens(const Tokenizer& tokenizer, const std::string& document,
                  const std::vector<std::int32_t>& golden) {
    const std::vector<int> opening = tokenizer.opening(""), text = tokenizer.tokenize(document);
    const std::size_t front = golden.size() - std::min(golden.size(), text.size());
    const bool good = front > 0 && front <= opening.size() &&
                      std::equal(golden.begin(), golden.begin() + std::ptrdiff_t(front),
                                 opening.end() - std::ptrdiff_t(front)) &&
                      std::equal(text.begin(), text.end(), golden.begin() + std::ptrdiff_t(front));
    report(good, "tokens", fmt::format("{} of the prompt, {} of the document", front, text.size()));
}

// A real document on the real model. The golden numbers come from fp32 products with the dequantised
// weights; ours differ in rounding, so kept sets agree nearly, not entirely.
void check_document(const Safetensors& file, const std::string& model_path, Compute& compute) {
    const GgufModel model(model_path);
    const Tokenizer tokenizer(model_path);
    const HyperParameters& p = model.parameters();
    const std::vector<std::int32_t> tokens = file.read<std::int32_t>("tokens");
    check_tokens(tokenizer, file.metadata("document"), tokens);

    ReadContext full = read_context(model, compute, tokens, {});
    const std::vector<float> logits = final_logits(model, compute, full.last_hidden.data());
    const std::vector<float> golden = file.read<float>("logits_last");
    float largest = 0, worst = 0;
    for (std::size_t i = 0; i < golden.size(); ++i) {
        largest = std::max(largest, std::abs(golden[i]));
        worst = std::max(worst, std::abs(golden[i] - logits[i]));
    }
    // Only the last product rounds its input to 8 bits here.
    report(worst <= 0.02f * largest, "logits_last",
           fmt::format("largest difference {:.2e} of {:.3g}", worst, largest));

    for (const auto& [name, entry] : file.entries().items()) {
        if (!name.starts_with("keep.")) continue;
        ReadSettings settings;
        settings.method = Method::parse(name.substr(5), {"window=" + file.metadata("window")});
        settings.budget = {std::stod(file.metadata("keep")), true};
        const ReadContext context = read_context(model, compute, tokens, settings);
        const std::vector<std::uint8_t> kept = file.read<std::uint8_t>(name);
        std::size_t common = 0, total = 0;
        for (int l = 0; l < p.layers; ++l)
            for (int h = 0; h < p.kv_heads; ++h)
                for (std::uint32_t position : context.cache.positions(l, h))
                    common += kept[std::size_t(l * p.kv_heads + h) * tokens.size() + position];
        for (std::uint8_t k : kept) total += k;
        report(context.cache.entries() == total && double(common) >= 0.95 * double(total), name,
               fmt::format("{} kept, {:.2f}% agree", context.cache.entries(),
                           100.0 * double(common) / double(total)));
    }
}

}  // namespace

}  // namespace holdfast::testing

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): printing alone can still throw
    using namespace holdfast;
    using namespace holdfast::testing;
    std::string model = default_model_path();
    std::vector<std::string> files;
    CLI::App app{"Compares holdfast with the choices of the published implementation."};
    app.add_option("-m,--model", model, "GGUF file for files that hold a document");
    app.add_option("files", files, "Golden files")->required();
    CLI11_PARSE(app, argc, argv);
    silence_libraries();
    Compute compute(int(std::max(1u, std::thread::hardware_concurrency())));
    for (const std::string& path : files) {
        fmt::print("{}\n", path);
        try {
            const Safetensors file(path);
            if (file.has("tokens"))
                check_document(file, model, compute);
            else
                SyntheticLayers(file, compute).check();
        } catch (const std::exception& error) {
            report(false, path, error.what());
        }
    }
    fmt::print("{} passed, {} failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
