#include "eval/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace holdfast {

namespace {

std::string interval_text(const Interval& i) {
    return fmt::format("{:.1f} to {:.1f}", i.low, i.high);
}

std::string signed_interval(const Interval& i) {
    return fmt::format("{:+.1f} ({:+.1f} to {:+.1f})", i.mean, i.low, i.high);
}

// Kept entries in per cent of the context, over all samples and methods: budgets in tokens and in per cent
// on one scale.
double kept_share(const Summary& summary, const std::string& budget) {
    double share = 0;
    int count = 0;
    for (const SampleResult& r : summary.results())
        if (r.budget == budget && r.method != "full") {
            share += 100 * r.kept_mean / r.tokens;
            ++count;
        }
    return share / count;
}

// Rising, the full cache aside.
std::vector<std::string> budgets(const Summary& summary) {
    std::vector<std::string> all;
    for (const Column& c : summary.columns())
        if (c.method != "full" && std::ranges::find(all, c.budget) == all.end()) all.push_back(c.budget);
    std::ranges::stable_sort(all, {}, [&](const std::string& budget) { return kept_share(summary, budget); });
    return all;
}

std::vector<std::string> methods(const Summary& summary) {
    std::vector<std::string> all;
    for (const Column& c : summary.columns())
        if (std::ranges::find(all, c.method) == all.end()) all.push_back(c.method);
    return all;
}

// The full cache and the methods at one budget.
std::vector<Column> columns_at(const Summary& summary, const std::string& budget) {
    std::vector<Column> columns;
    for (const Column& c : summary.columns())
        if (c.method == "full" || c.budget == budget) columns.push_back(c);
    return columns;
}

bool has(const Summary& summary, const Column& column) {
    return std::ranges::find(summary.columns(), column) != summary.columns().end();
}

// The method that another one builds on, and is compared with in its paper; empty if there is none here.
std::string base_method(const std::string& method, const std::vector<std::string>& known) {
    std::string base;
    if (method.starts_with("critical-")) base = method.substr(9);
    if (method == "defensive" || method == "layer-defensive") base = "critical-adakv";
    return std::ranges::find(known, base) == known.end() ? "" : base;
}

void add_scores(Document& document, const Summary& summary) {
    document.heading("Scores");
    std::vector<std::string> all = budgets(summary);
    if (all.empty()) all = {"100%"};  // the full cache alone
    for (const std::string& budget : all) {
        const std::vector<Column> columns = columns_at(summary, budget);
        document.paragraph("At " + budget + ", 0 to 100:");
        Table table;
        table.head = {"task"};
        for (const Column& c : columns) table.head.push_back(c.method);
        for (const std::string& task : summary.tasks()) {
            table.rows.push_back({task});
            double best = 0;
            for (const Column& c : columns)
                if (c.method != "full") best = std::max(best, summary.mean(task, c).value_or(0));
            for (const Column& c : columns) {
                const std::optional<double> mean = summary.mean(task, c);
                table.rows.back().emplace_back(mean ? fmt::format("{:.1f}", *mean) : "-",
                                               mean && c.method != "full" && *mean == best && best > 0);
            }
        }
        std::vector<Cell> means = {{summary.mean_name(), true}}, intervals = {"95% interval"};
        for (const Column& c : columns) {
            const Interval mean = summary.mean_interval(c);
            means.emplace_back(fmt::format("{:.1f}", mean.mean), true);
            intervals.emplace_back(interval_text(mean));
        }
        table.rows.push_back(means);
        table.rows.push_back(intervals);
        document.table(std::move(table));
    }
    if (!summary.complete())
        document.paragraph(
            "Not every method has answered every sample so far: means are over those that each has; losses "
            "and differences "
            "over those that both have.");
}

void add_curves(Document& document, const Summary& summary) {
    const std::vector<std::string> all = budgets(summary);
    if (all.empty()) return;
    if (all.size() == 1) {
        document.heading("Mean score at " + all[0]);
        Chart chart{Chart::Kind::bars,
                    "method",
                    "mean score, 0 to 100, with its 95% interval",
                    {},
                    {{"mean score", {}, {}, {}}}};
        for (const Column& c : columns_at(summary, all[0])) {
            const Interval mean = summary.mean_interval(c);
            chart.x.push_back(c.method);
            chart.series[0].y.push_back(mean.mean);
            chart.series[0].low.push_back(mean.low);
            chart.series[0].high.push_back(mean.high);
        }
        document.chart(std::move(chart));
        return;
    }
    document.heading("Score against budget");
    Chart chart{Chart::Kind::lines, "kept, % of the context", "mean score, 0 to 100", {}, {}};
    for (const std::string& budget : all)
        chart.x.push_back(fmt::format("{:.1f}", kept_share(summary, budget)));
    for (const std::string& method : methods(summary)) {
        Series series{method, {}, {}, {}};
        for (const std::string& budget : all) {
            const Column column{method, method == "full" ? "100%" : budget};
            series.y.push_back(has(summary, column) ? summary.mean(column) : NAN);
        }
        chart.series.push_back(std::move(series));
    }
    document.chart(std::move(chart));
}

void add_losses(Document& document, const Summary& summary) {
    if (summary.full() == nullptr || summary.columns().size() < 2) return;
    document.heading("Compression loss");
    document.paragraph(
        "How much lower than the full cache's the mean score is, in per cent of it; and how many times "
        "smaller the loss is than "
        "with the method that this one builds on, as the papers compare them.");
    const std::vector<std::string> known = methods(summary);
    Table table;
    table.head = {"method", "budget", "loss, %", "95% interval", "times smaller", "than"};
    for (const Column& c : summary.columns()) {
        if (c.method == "full") continue;
        const Interval loss = summary.loss(c);
        std::string base = base_method(c.method, known);
        if (!has(summary, {base, c.budget})) base.clear();
        std::string times = "-";
        if (!base.empty()) {
            const double before = summary.loss({base, c.budget}).mean;
            times = loss.mean > 0 ? fmt::format("{:.2f}", before / loss.mean)
                    : before > 0  ? "no loss left"
                                  : "-";
        }
        table.rows.push_back({c.method, c.budget, fmt::format("{:.1f}", loss.mean), interval_text(loss),
                              times, base.empty() ? "-" : base});
    }
    document.table(std::move(table));
}

void add_differences(Document& document, const Summary& summary) {
    for (const std::string& budget : budgets(summary)) {
        const std::vector<Column> columns = columns_at(summary, budget);
        if (columns.size() < 2) continue;
        document.heading("Paired differences at " + budget);
        document.paragraph(
            "The row's mean score less the column's, over the samples that both answered, with its 95% "
            "interval; strong where the "
            "interval leaves out 0.");
        Table table;
        table.head = {"method"};
        for (std::size_t j = 1; j < columns.size(); ++j) table.head.push_back(columns[j].method);
        for (std::size_t i = 0; i + 1 < columns.size(); ++i) {
            table.rows.push_back({columns[i].method});
            for (std::size_t j = 1; j < columns.size(); ++j) {
                if (j <= i) {
                    table.rows.back().emplace_back("");
                    continue;
                }
                const Interval difference = summary.difference(columns[i], columns[j]);
                table.rows.back().emplace_back(signed_interval(difference),
                                               difference.low > 0 || difference.high < 0);
            }
        }
        document.table(std::move(table));
    }
}

void add_layers(Document& document, const Summary& summary, int kv_heads) {
    for (const std::string& budget : budgets(summary)) {
        Chart chart{Chart::Kind::lines, "layer", "kept entries, % of the layer's", {}, {}};
        for (const Column& c : columns_at(summary, budget)) {
            if (c.method == "full") continue;
            std::vector<double> share;
            int count = 0;
            for (const SampleResult& r : summary.results()) {
                if (r.method != c.method || r.budget != c.budget) continue;
                ++count;
                share.resize(r.kept_by_layer.size());
                for (std::size_t l = 0; l < share.size(); ++l)
                    share[l] += 100.0 * r.kept_by_layer[l] / (double(r.tokens) * kv_heads);
            }
            for (double& s : share) s /= count;
            chart.series.push_back({c.method, std::move(share), {}, {}});
        }
        if (chart.series.empty()) continue;
        for (std::size_t l = 0; l < chart.series[0].y.size(); ++l) chart.x.push_back(std::to_string(l));
        document.heading("Kept share of each layer at " + budget);
        document.chart(std::move(chart));
    }
}

void add_costs(Document& document, const Summary& summary) {
    document.heading("Speed and memory");
    document.paragraph(
        "Means over the samples. Prefill is one reading for all methods together; compression is what each "
        "method takes by itself, in per cent of that prefill; answers are decoded one token at a time.");
    Table table;
    table.head = {"method",     "budget",         "context, tokens", "kept a head", "cache, MiB",
                  "prefill, s", "compression, s", "compression, %",  "question, s", "answer, tokens/s"};
    for (const Column& c : summary.columns()) {
        double count = 0, tokens = 0, kept = 0, bytes = 0, prefill = 0, compression = 0, question = 0,
               answer = 0, said = 0;
        for (const SampleResult& r : summary.results()) {
            if (r.method != c.method || r.budget != c.budget) continue;
            ++count;
            tokens += r.tokens;
            kept += r.kept_mean;
            bytes += double(r.cache_bytes);
            prefill += r.prefill_seconds;
            compression += r.compression_seconds;
            question += r.question_seconds;
            answer += r.answer_seconds;
            said += r.answer_tokens;
        }
        table.rows.push_back(
            {c.method, c.budget, fmt::format("{:.0f}", tokens / count), fmt::format("{:.0f}", kept / count),
             fmt::format("{:.2f}", bytes / count / (1 << 20)), fmt::format("{:.2f}", prefill / count),
             fmt::format("{:.3f}", compression / count), fmt::format("{:.1f}", 100 * compression / prefill),
             fmt::format("{:.2f}", question / count),
             answer > 0 ? fmt::format("{:.0f}", said / answer) : "-"});
    }
    document.table(std::move(table));
}

std::string plain(const nlohmann::ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

// "tasks.ruler.length" for what is nested.
void add_rows(Table& table, const std::string& prefix, const nlohmann::ordered_json& object) {
    for (const auto& [name, value] : object.items())
        if (value.is_object())
            add_rows(table, prefix + name + ".", value);
        else if (!value.is_null() && !plain(value).empty() && !(name == "rope_scale" && value == 0))
            table.rows.push_back({prefix + name, plain(value)});
}

void add_settings(Document& document, const Summary& summary, const nlohmann::ordered_json& manifest) {
    document.heading("Settings");
    Table table;
    table.head = {"setting", "value"};
    add_rows(table, "", manifest.at("settings"));
    add_rows(table, "", manifest.at("machine"));
    std::size_t cut = 0;
    std::set<std::string> samples;
    for (const SampleResult& r : summary.results())
        if (samples.insert(r.sample + r.prompt).second) cut += r.cut_tokens > 0;
    table.rows.push_back({"samples", std::to_string(samples.size())});
    table.rows.push_back({"samples that lost their middle", std::to_string(cut)});
    table.rows.push_back({"holdfast", plain(manifest.at("version"))});
    document.table(std::move(table));
}

}  // namespace

Document evaluation_report(const Summary& summary, const nlohmann::ordered_json& manifest) {
    const nlohmann::ordered_json& settings = manifest.at("settings");
    const bool aware = settings.at("question_aware");
    Document document(plain(settings.at("model")) + ", " + (aware ? "question-aware" : "question-agnostic") +
                      " compression");
    std::size_t least = SIZE_MAX, most = 0;
    for (const std::string& task : summary.tasks())
        for (const Column& c : summary.columns()) {
            least = std::min(least, summary.samples(task, c));
            most = std::max(most, summary.samples(task, c));
        }
    document.paragraph(fmt::format(
        "{} tasks, {} samples each. Each context was read once{}; every method kept its share of that one "
        "reading, and answered the "
        "question from it, greedily.",
        summary.tasks().size(), least == most ? std::to_string(most) : fmt::format("{} to {}", least, most),
        aware ? ", together with its question" : " and compressed before its question was known"));
    add_scores(document, summary);
    add_curves(document, summary);
    add_losses(document, summary);
    add_differences(document, summary);
    add_layers(document, summary, manifest.at("kv_heads"));
    add_costs(document, summary);
    add_settings(document, summary, manifest);
    return document;
}

}  // namespace holdfast
