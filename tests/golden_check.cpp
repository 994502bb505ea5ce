// golden_check [-m MODEL] FILE...: compares holdfast with the choices of the published implementation.
//
// A file of synthetic layers (docs/methods/golden-files.md) is checked entry by entry. A file with the
// tokens of a real document is read with the model. Entries that no method here produces are listed as
// not checked. The last line is "N passed, N failed"; the exit status is 1 if one failed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "cache/ragged_cache.hpp"
#include "cli/default_model.hpp"
#include "engine/context.hpp"
#include "evict/cascade.hpp"
#include "evict/observer.hpp"
#include "kernels/attention.hpp"
#include "kernels/vnorm.hpp"
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

// scores: what the choice was made by; a difference between entries of equal score is none.
void compare_kept(const std::string& entry, std::span<const std::uint8_t> ours,
                  std::span<const std::uint8_t> golden, std::span<const float> scores) {
    if (ours.size() != golden.size()) return report(false, entry, "wrong size");
    float threshold = INFINITY;  // the lowest score that the golden choice kept
    std::size_t kept = 0, ties = 0, differences = 0;
    for (std::size_t i = 0; i < golden.size(); ++i)
        if (golden[i]) threshold = std::min(threshold, scores[i]), ++kept;
    for (std::size_t i = 0; i < golden.size(); ++i)
        if (bool(ours[i]) != bool(golden[i]))
            ++(std::abs(scores[i] - threshold) <= 1e-6f * threshold ? ties : differences);
    report(differences == 0, entry, fmt::format("{} kept, {} differ, {} ties", kept, differences, ties));
}

// The layers of a synthetic file, checked one by one and together.
class SyntheticLayers {
  public:
    SyntheticLayers(const Safetensors& file, Compute& compute) : file_(file), compute_(compute) {
        layers_ = number("layers");
        n_ = std::uint32_t(number("n"));
        kv_heads_ = number("kv_heads");
        group_ = number("group");
        head_dim_ = number("head_dim");
        hidden_ = number("hidden");
        settings_.window = std::uint32_t(number("window"));
        settings_.kernel = number("kernel");
        budget_ = {std::stod(file.metadata("keep")), true};
    }

    void check() {
        for (int l = 0; l < layers_; ++l) check_layer(l);
        check_layer_defensive();
        for (const auto& [name, entry] : file_.entries().items())
            if (!checked_.contains(name)) fmt::print("     {:<44} not checked\n", name);
    }

  private:
    int number(const char* key) const { return std::stoi(file_.metadata(key)); }
    std::size_t entries() const { return std::size_t(kv_heads_) * n_; }

    std::vector<float> golden(const std::string& name) {
        checked_.insert(name);
        return file_.read<float>(name);
    }
    std::vector<std::uint8_t> golden_kept(const std::string& name) {
        checked_.insert(name);
        return file_.read<std::uint8_t>(name);
    }

    void check_layer(int l) {
        const std::string prefix = "layer" + std::to_string(l) + ".";
        const std::vector<float> q = golden(prefix + "Q"), k = golden(prefix + "K"), v = golden(prefix + "V"),
                                 wo = golden(prefix + "Wo");
        RaggedCache cache(std::make_shared<PagePool>(head_dim_), 1, kv_heads_);
        cache.append(0, 0, n_);
        for (int h = 0; h < kv_heads_; ++h)
            for (std::uint32_t j = 0; j < n_; ++j) {
                const std::size_t at = (std::size_t(h) * n_ + j) * std::size_t(head_dim_);
                cache.write(0, h, j, k.data() + at, v.data() + at);
            }
        LayerView view;
        view.kv_heads = kv_heads_;
        view.group = group_;
        view.head_dim = head_dim_;
        view.scale = 1.0f / std::sqrt(float(head_dim_));
        view.tokens = n_;
        for (int h = 0; h < kv_heads_; ++h) view.pages.push_back(cache.pages(0, h));
        view.queries = q.data();
        const int inputs = kv_heads_ * group_ * head_dim_;
        std::vector<float> panels(PackedMatrix::elements(hidden_, inputs)),
            scratch(std::size_t(32) * std::size_t(inputs));
        view.output = {panels.data(), hidden_, inputs};
        for (int i = 0; i < view.output.panel_count(); ++i)
            pack_panel(
                panels.data(), i, hidden_, inputs,
                [&](int row, float* to) {
                    std::copy_n(wo.data() + std::size_t(row) * std::size_t(inputs), inputs, to);
                },
                scratch.data());

        check_attention(prefix, view);
        check_norms(prefix, view);
        for (const bool reference : {false, true}) check_defensive(prefix, view, reference);
    }

    void check_attention(const std::string& prefix, const LayerView& view) {
        const std::size_t stride = pages_for(n_) * page_tokens;
        const int window = int(settings_.window);
        std::vector<float> row(stride), workspace(attention_workspace(1, head_dim_)),
            query(std::size_t(head_dim_) + 0);
        std::vector<float> all;
        for (int h = 0; h < kv_heads_ * group_; ++h)
            for (int i = 0; i < window; ++i) {
                const float* from = view.queries + std::size_t(h * window + i) * std::size_t(head_dim_);
                std::transform(from, from + head_dim_, query.begin(),
                               [&](float x) { return x * view.scale; });
                AttentionTask task;
                task.rows = 1;
                task.head_dim = head_dim_;
                task.query = query.data();
                task.pages = view.pages[std::size_t(h / group_)];
                task.slot_end = n_;
                score_slots(task, row.data(), stride, workspace.data());
                softmax_row(row.data(), n_ - settings_.window + std::uint32_t(i) + 1, n_);
                all.insert(all.end(), row.begin(), row.begin() + n_);
            }
        compare_values(prefix + "window_attention", all, golden(prefix + "window_attention"));
    }

    void check_norms(const std::string& prefix, const LayerView& view) {
        std::vector<float> norms(entries()), workspace(std::size_t(page_tokens) * std::size_t(head_dim_));
        for (int h = 0; h < kv_heads_; ++h)
            for (std::uint32_t j = 0; j < n_; j += page_tokens)
                projected_value_norms(view.pages[std::size_t(h)][j / page_tokens],
                                      int(std::min<std::uint32_t>(page_tokens, n_ - j)), head_dim_,
                                      view.output, h * group_, group_, norms.data() + std::size_t(h) * n_ + j,
                                      workspace.data());
        compare_values(prefix + "vnorm", norms, golden(prefix + "vnorm"));
    }

    void check_defensive(const std::string& prefix, const LayerView& view, bool reference) {
        const std::string variant = reference ? "reference" : "corrected";
        DefensiveSettings settings = settings_;
        settings.reference = reference;
        Observer observer(
            settings,
            [&](int count, const std::function<void(int, int)>& task) { compute_.parallel(count, task); },
            compute_.threads());
        const DefensiveInput input = observer.observe(view);
        const auto mass = float(input.window_mass);
        compare_values(prefix + "window_mass." + variant, {&mass, 1},
                       golden(prefix + "window_mass." + variant));

        const DefensiveScores scores = defensive_scores(input, settings, budget_.tokens_per_head(n_));
        std::vector<float> all;  // with the window
        for (int h = 0; h < kv_heads_; ++h) {
            const float* head = scores.past.data() + input.at(std::uint32_t(h), 0);
            all.insert(all.end(), head, head + input.past);
            all.insert(all.end(), settings.window, scores.highest);
        }
        compare_values(prefix + "score.defensive." + variant, all,
                       golden(prefix + "score.defensive." + variant));

        const std::string kept = prefix + "keep.defensive." + variant;
        compare_kept(kept, choose({scores.past}, budget_.entries(n_, std::size_t(kv_heads_))),
                     golden_kept(kept), all);
        if (!reference) {
            past_scores_.push_back(scores.past);
            all_scores_.insert(all_scores_.end(), all.begin(), all.end());
        }
    }

    // What a cascade over these layers keeps, 0/1 [layers, kv_heads, n].
    std::vector<std::uint8_t> choose(const std::vector<std::vector<float>>& layers,
                                     std::size_t budget) const {
        const std::size_t heads = layers.size() * std::size_t(kv_heads_);
        Cascade cascade(std::uint32_t(kv_heads_), budget - std::min(budget, heads * settings_.window));
        std::vector<std::vector<std::uint32_t>> kept(heads);
        const std::uint32_t past = n_ - settings_.window;
        for (std::size_t l = 0; l < layers.size(); ++l) {
            for (int h = 0; h < kv_heads_; ++h)
                for (std::uint32_t j = 0; j < past; ++j)
                    kept[l * std::size_t(kv_heads_) + std::size_t(h)].push_back(j);
            cascade.add_layer(layers[l], [&](std::uint32_t layer, std::uint32_t head,
                                             std::span<const std::uint32_t> slots) {
                auto& list = kept[layer * std::size_t(kv_heads_) + head];
                for (std::size_t i = 0; i < slots.size(); ++i) list[i] = list[slots[i]];
                list.resize(slots.size());
            });
        }
        std::vector<std::uint8_t> mask(heads * n_);
        for (std::size_t h = 0; h < heads; ++h) {
            for (std::uint32_t j : kept[h]) mask[h * n_ + j] = 1;
            std::fill_n(mask.begin() + std::ptrdiff_t(h * n_ + past), settings_.window, std::uint8_t(1));
        }
        return mask;
    }

    void check_layer_defensive() {
        const std::size_t heads = std::size_t(layers_) * std::size_t(kv_heads_);
        const std::vector<std::uint8_t> ours = choose(past_scores_, budget_.entries(n_, heads));
        std::vector<std::uint8_t> all;
        for (int l = 0; l < layers_; ++l) {
            const std::vector<std::uint8_t> layer =
                golden_kept("layer" + std::to_string(l) + ".keep.layer-defensive");
            all.insert(all.end(), layer.begin(), layer.end());
        }
        compare_kept("keep.layer-defensive (all layers)", ours, all, all_scores_);
    }

    const Safetensors& file_;
    Compute& compute_;
    int layers_, kv_heads_, group_, head_dim_, hidden_;
    std::uint32_t n_;
    DefensiveSettings settings_;
    Budget budget_;
    std::vector<std::vector<float>> past_scores_;  // of each layer
    std::vector<float> all_scores_;
    std::set<std::string> checked_;
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
    const Model model(model_path);
    const Tokenizer tokenizer(model_path);
    const HyperParameters& p = model.parameters();
    const std::vector<std::int32_t> tokens = file.read<std::int32_t>("tokens");
    check_tokens(tokenizer, file.metadata("document"), tokens);

    ReadSettings settings;
    settings.defensive.window = std::uint32_t(std::stoi(file.metadata("window")));
    Context full = read_context(model, compute, tokens, settings);
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

    settings.budget = {std::stod(file.metadata("keep")), true};
    const Context context = read_context(model, compute, tokens, settings);
    const std::vector<std::uint8_t> kept = file.read<std::uint8_t>("keep.layer-defensive");
    std::size_t common = 0, total = 0;
    for (int l = 0; l < p.layers; ++l)
        for (int h = 0; h < p.kv_heads; ++h)
            for (std::uint32_t position : context.cache.positions(l, h))
                common += kept[std::size_t(l * p.kv_heads + h) * tokens.size() + position];
    for (std::uint8_t k : kept) total += k;
    report(context.cache.entries() == total && double(common) >= 0.95 * double(total), "keep.layer-defensive",
           fmt::format("{} kept, {:.2f}% agree", context.cache.entries(),
                       100.0 * double(common) / double(total)));
    for (const auto& [name, entry] : file.entries().items())
        if (name.starts_with("keep.") && name != "keep.layer-defensive")
            fmt::print("     {:<44} not checked\n", name);
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
