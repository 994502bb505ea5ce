#include "analyze/analysis_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/utf8.hpp"

namespace holdfast {

namespace {

std::string joined(const std::vector<std::string>& pieces) {
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    return text;
}

// A token in a table: its text, spaces and breaks shown.
std::string shown(const std::string& piece) {
    std::string text;
    for (char c : piece) text += c == '\n' ? "⏎" : c == ' ' ? "␣" : std::string(1, c);
    return text;
}

Document begin(const AnalysisSubject& subject, const std::string& title) {
    Document document(title + ", " + subject.model);
    document.paragraph(
        fmt::format("Context: {} tokens. Question: {}", subject.pieces.size(), subject.question));
    if (!subject.answer.empty())
        document.paragraph(fmt::format("Answer of the full cache ({} tokens): {}", subject.answer.size(),
                                       joined(subject.answer)));
    return document;
}

nlohmann::ordered_json begin_json(const AnalysisSubject& subject) {
    return {{"model", subject.model},
            {"question", subject.question},
            {"context_tokens", subject.pieces.size()},
            {"answer", joined(subject.answer)},
            {"answer_tokens", subject.answer},
            {"layers", subject.layers}};
}

// [layers that evict][heads]: value(head) of each.
template <typename Head, typename Value>
std::vector<std::vector<double>> by_layer(const AnalysisSubject& subject, const std::vector<Head>& heads,
                                          const Value& value) {
    std::vector<std::vector<double>> rows;
    for (int layer : subject.layers) {
        auto& row = rows.emplace_back();
        for (int h = 0; h < subject.heads; ++h)
            row.push_back(double(value(heads[std::size_t(layer * subject.heads + h)])));
    }
    return rows;
}

double mean(const std::vector<double>& values) {
    double sum = 0;
    for (double value : values) sum += value;
    return values.empty() ? 0 : sum / double(values.size());
}

std::vector<std::string> numbers(const std::vector<int>& values) {
    std::vector<std::string> texts;
    for (int value : values) texts.push_back(std::to_string(value));
    return texts;
}

std::vector<std::string> step_numbers(std::size_t steps) {
    std::vector<std::string> texts;
    for (std::size_t i = 1; i <= steps; ++i) texts.push_back(std::to_string(i));
    return texts;
}

// Index of the method that this one refines with `critical`, at the same budget; -1 if it isn't there.
int unrefined(const AnalysisSubject& subject, std::size_t method) {
    std::string name = subject.methods[method];
    if (name.starts_with("critical-"))
        name = name.substr(9);
    else if (const std::size_t at = name.find("+critical"); at != std::string::npos)
        name.erase(at, 9);
    else
        return -1;
    const auto found = std::ranges::find(subject.methods, name);
    return found == subject.methods.end() ? -1 : int(found - subject.methods.begin());
}

// Share of the heads that critical perturbs less than without.
double lowered_share(const AnalysisSubject& subject, const Perturbation& critical, const Perturbation& base) {
    int lower = 0, all = 0;
    for (int layer : subject.layers)
        for (int h = 0; h < subject.heads; ++h) {
            const std::size_t i = std::size_t(layer * subject.heads + h);
            lower += critical.heads[i].distance < base.heads[i].distance;
            ++all;
        }
    return double(lower) / all;
}

// One sentence on which method has the least and which the most of something.
template <typename Value>
std::string extremes(const AnalysisSubject& subject, const Value& value, const char* least,
                     const char* most) {
    std::size_t low = 0, high = 0;
    for (std::size_t m = 1; m < subject.methods.size(); ++m) {
        if (value(m) < value(low)) low = m;
        if (value(m) > value(high)) high = m;
    }
    if (low == high) return fmt::format("{}: {:.3g}.", subject.methods[low], value(low));
    return fmt::format("{} {} ({:.3g}), {} {} ({:.3g}).", subject.methods[low], least, value(low),
                       subject.methods[high], most, value(high));
}

// All maps on one scale, up to the 99th percentile of their values.
void share_scale(std::vector<HeatMap>& maps) {
    std::vector<double> values;
    for (const HeatMap& map : maps)
        for (const std::vector<double>& row : map.values) values.insert(values.end(), row.begin(), row.end());
    const auto at = values.begin() + std::ptrdiff_t(0.99 * double(values.size() - 1));
    std::nth_element(values.begin(), at, values.end());
    for (HeatMap& map : maps) map.high = *at > 0 ? *at : 1;
}

}  // namespace

Document perturbation_report(const AnalysisSubject& subject, const PerturbationAnalysis& analysis) {
    Document document = begin(subject, "Output perturbation");
    document.heading("Heads");
    document.paragraph(
        "How far each head's attention output, behind the output projection, moves when it sees only what a "
        "method kept, on the queries "
        "of the full cache: L1 distance, and relative to the full output's L1 norm; means over heads and "
        "answer steps. The bound "
        "is CriticalKV's, which the distance never exceeds. σ is the attention on what is kept.");
    Table table;
    table.head = {"method",
                  "distance",
                  "relative, %",
                  "bound",
                  "distance / bound, %",
                  "σ",
                  "heads and steps with σ > 0.5, %",
                  "heads lower than without critical, %"};
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        const Perturbation& kept = analysis.kept[m];
        const double distance = kept.mean(&HeadPerturbation::distance),
                     bound = kept.mean(&HeadPerturbation::bound);
        const int base = unrefined(subject, m);
        table.rows.push_back(
            {subject.methods[m], fmt::format("{:.2f}", distance),
             fmt::format("{:.1f}", 100 * kept.mean(&HeadPerturbation::relative)),
             fmt::format("{:.1f}", bound), fmt::format("{:.1f}", bound > 0 ? 100 * distance / bound : 0),
             fmt::format("{:.3f}", kept.mean(&HeadPerturbation::mass)),
             fmt::format("{:.1f}", 100 * kept.mean(&HeadPerturbation::majority)),
             base < 0 ? "-"
                      : fmt::format("{:.1f}",
                                    100 * lowered_share(subject, kept, analysis.kept[std::size_t(base)]))});
    }
    document.table(std::move(table));
    document.paragraph(extremes(
        subject, [&](std::size_t m) { return analysis.kept[m].mean(&HeadPerturbation::distance); },
        "moves the outputs least", "most"));

    std::vector<HeatMap> maps;
    for (std::size_t m = 0; m < subject.methods.size(); ++m)
        maps.push_back(
            {subject.methods[m] + ": relative perturbation", "layer", "head", subject.layers,
             by_layer(subject, analysis.kept[m].heads, [](const HeadPerturbation& h) { return h.relative; }),
             0, 1});
    share_scale(maps);
    document.heading("Relative perturbation of each head");
    document.paragraph("The stronger, the further; mean over the answer's steps, one scale for all methods.");
    document.heat_maps(std::move(maps));

    document.heading("Layers");
    document.paragraph("Mean over the layer's heads.");
    Chart chart{Chart::Kind::lines,
                "layer",
                "relative perturbation of attention outputs, %",
                numbers(subject.layers),
                {}};
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        Series series{subject.methods[m], {}, {}, {}};
        for (const auto& row : by_layer(subject, analysis.kept[m].heads,
                                        [](const HeadPerturbation& h) { return 100 * h.relative; }))
            series.y.push_back(mean(row));
        chart.series.push_back(std::move(series));
    }
    document.chart(std::move(chart));

    document.heading("Hidden states");
    document.paragraph(
        "The model really running on what is kept, fed the same tokens: L1 distance of the hidden states "
        "behind each layer from the full "
        "cache's, relative to their L1 norm; mean over the answer's steps.");
    Chart hidden{Chart::Kind::lines, "layer", "relative distance of hidden states, %", {}, {}};
    hidden.x = step_numbers(analysis.kept.at(0).hidden.size());
    for (std::size_t l = 0; l < hidden.x.size(); ++l) hidden.x[l] = std::to_string(l);
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        Series series{subject.methods[m], analysis.kept[m].hidden_relative, {}, {}};
        for (double& y : series.y) y *= 100;
        hidden.series.push_back(std::move(series));
    }
    document.chart(std::move(hidden));

    document.heading("Steps of the answer");
    Chart course{Chart::Kind::lines,
                 "answer step",
                 "relative perturbation, mean over heads, %",
                 step_numbers(subject.answer.size()),
                 {}};
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        Series series{subject.methods[m], analysis.kept[m].relative_by_step, {}, {}};
        for (double& y : series.y) y *= 100;
        course.series.push_back(std::move(series));
    }
    document.chart(std::move(course));
    return document;
}

nlohmann::ordered_json perturbation_json(const AnalysisSubject& subject,
                                         const PerturbationAnalysis& analysis) {
    nlohmann::ordered_json json = begin_json(subject);
    json["methods"] = nlohmann::ordered_json::array();
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        const Perturbation& kept = analysis.kept[m];
        nlohmann::ordered_json method = {{"method", subject.methods[m]},
                                         {"distance", kept.mean(&HeadPerturbation::distance)},
                                         {"relative", kept.mean(&HeadPerturbation::relative)},
                                         {"bound", kept.mean(&HeadPerturbation::bound)},
                                         {"mass", kept.mean(&HeadPerturbation::mass)},
                                         {"majority", kept.mean(&HeadPerturbation::majority)}};
        if (const int base = unrefined(subject, m); base >= 0)
            method["heads_lower_than_without_critical"] =
                lowered_share(subject, kept, analysis.kept[std::size_t(base)]);
        using H = HeadPerturbation;
        // [layers that evict][heads]
        method["heads"] = {
            {"distance", by_layer(subject, kept.heads, [](const H& h) { return h.distance; })},
            {"relative", by_layer(subject, kept.heads, [](const H& h) { return h.relative; })},
            {"bound", by_layer(subject, kept.heads, [](const H& h) { return h.bound; })},
            {"mass", by_layer(subject, kept.heads, [](const H& h) { return h.mass; })},
            {"majority", by_layer(subject, kept.heads, [](const H& h) { return h.majority; })}};
        method["hidden_distance"] = kept.hidden;  // [all layers]
        method["hidden_relative"] = kept.hidden_relative;
        method["relative_by_step"] = kept.relative_by_step;
        json["methods"].push_back(std::move(method));
    }
    return json;
}

namespace {

std::string evicted_text(const AnalysisSubject& subject, const WorstPlace& place) {
    std::string text;
    for (const EvictedToken& token : place.evicted)
        text += fmt::format("{}{} ({:.1f}%)", text.empty() ? "" : ", ", shown(subject.pieces[token.position]),
                            100 * token.mass);
    return text;
}

nlohmann::ordered_json place_json(const AnalysisSubject& subject, const WorstPlace& place) {
    nlohmann::ordered_json json = {{"step", place.step + 1},
                                   {"token", subject.answer[std::size_t(place.step)]},
                                   {"retained", place.retained}};
    if (place.layer >= 0) {
        json["layer"] = place.layer;
        json["head"] = place.head;
    }
    json["evicted"] = nlohmann::ordered_json::array();
    for (const EvictedToken& token : place.evicted)
        json["evicted"].push_back(
            {{"position", token.position}, {"token", subject.pieces[token.position]}, {"mass", token.mass}});
    return json;
}

}  // namespace

Document fragility_report(const AnalysisSubject& subject, const FragilityAnalysis& analysis,
                          double threshold) {
    Document document = begin(subject, "Retained importance");
    document.heading("From step to step");
    document.paragraph(
        fmt::format("Of the full model's attention on the context at each step of its answer, the share that "
                    "lies on what a method kept. A collapse is "
                    "a step of a head at which it retains less than {:.2f} of its mean over the steps.",
                    threshold));
    Table table;
    table.head = {"method",
                  "mean",
                  "mean of the heads' least",
                  "least of all",
                  "collapses",
                  "most of one head",
                  "heads that collapse, %"};
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        const Fragility& kept = analysis.kept[m];
        double collapsing = 0;
        for (const auto& row : by_layer(subject, kept.heads,
                                        [](const HeadFragility& h) { return h.collapses > 0 ? 100.0 : 0.0; }))
            collapsing += mean(row) / double(subject.layers.size());
        table.rows.push_back({subject.methods[m], fmt::format("{:.3f}", kept.mean),
                              fmt::format("{:.3f}", kept.mean_least),
                              fmt::format("{:.3f}", kept.worst_head.retained), std::to_string(kept.collapses),
                              std::to_string(kept.most_collapses), fmt::format("{:.1f}", collapsing)});
    }
    document.table(std::move(table));
    document.paragraph(extremes(
        subject, [&](std::size_t m) { return analysis.kept[m].worst_head.retained; },
        "falls lowest at its worst step and head", "stays highest"));
    for (const bool least : {false, true}) {
        Chart chart{
            Chart::Kind::lines,
            "answer step",
            least ? "retained importance, least of all heads" : "retained importance, mean over heads",
            step_numbers(subject.answer.size()),
            {}};
        for (std::size_t m = 0; m < subject.methods.size(); ++m)
            chart.series.push_back({subject.methods[m],
                                    least ? analysis.kept[m].least_by_step : analysis.kept[m].mean_by_step,
                                    {},
                                    {}});
        document.chart(std::move(chart));
    }

    document.heading("Where it is worst");
    document.paragraph(
        "The step with the lowest mean over heads, and the lowest single head: the token produced there, and "
        "the evicted tokens that carried "
        "most of the attention, with their share of it.");
    Table worst;
    worst.head = {"method", "step", "token", "head", "retained", "evicted tokens"};
    for (std::size_t m = 0; m < subject.methods.size(); ++m)
        for (const WorstPlace* place : {&analysis.kept[m].worst_step, &analysis.kept[m].worst_head})
            worst.rows.push_back(
                {subject.methods[m], std::to_string(place->step + 1),
                 shown(subject.answer[std::size_t(place->step)]),
                 place->layer < 0 ? std::string("all") : fmt::format("{}.{}", place->layer, place->head),
                 fmt::format("{:.3f}", place->retained), evicted_text(subject, *place)});
    document.table(std::move(worst));

    document.heading("Each head's least");
    document.paragraph("The stronger, the more is retained, at the head's worst step.");
    std::vector<HeatMap> maps;
    for (std::size_t m = 0; m < subject.methods.size(); ++m)
        maps.push_back(
            {subject.methods[m], "layer", "head", subject.layers,
             by_layer(subject, analysis.kept[m].heads, [](const HeadFragility& h) { return h.least; }), 0,
             1});
    document.heat_maps(std::move(maps));
    return document;
}

nlohmann::ordered_json fragility_json(const AnalysisSubject& subject, const FragilityAnalysis& analysis,
                                      double threshold) {
    nlohmann::ordered_json json = begin_json(subject);
    json["threshold"] = threshold;
    json["methods"] = nlohmann::ordered_json::array();
    using H = HeadFragility;
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        const Fragility& kept = analysis.kept[m];
        json["methods"].push_back(
            {{"method", subject.methods[m]},
             {"mean", kept.mean},
             {"mean_least", kept.mean_least},
             {"collapses", kept.collapses},
             {"most_collapses", kept.most_collapses},
             {"worst_step", place_json(subject, kept.worst_step)},
             {"worst_head", place_json(subject, kept.worst_head)},
             {"heads",
              {{"mean", by_layer(subject, kept.heads, [](const H& h) { return h.mean; })},
               {"least", by_layer(subject, kept.heads, [](const H& h) { return h.least; })},
               {"worst_step", by_layer(subject, kept.heads, [](const H& h) { return h.worst_step + 1; })},
               {"collapses", by_layer(subject, kept.heads, [](const H& h) { return h.collapses; })}}},
             {"mean_by_step", kept.mean_by_step},
             {"least_by_step", kept.least_by_step}});
    }
    return json;
}

TokenCounts count_kept(const AnalysisSubject& subject, std::span<const RaggedCache* const> kept) {
    TokenCounts counts;
    for (const RaggedCache* cache : kept) {
        auto& of_tokens = counts.emplace_back(subject.pieces.size());
        for (int layer : subject.layers)
            for (int h = 0; h < subject.kv_heads; ++h)
                for (std::uint32_t position : cache->positions(layer, h)) ++of_tokens[position];
    }
    return counts;
}

std::vector<ColouredText::Piece> coloured_pieces(const AnalysisSubject& subject,
                                                 const std::vector<int>& counts) {
    const int all = int(subject.layers.size()) * subject.kv_heads;
    std::vector<ColouredText::Piece> pieces;
    Utf8Stream stream;
    int most = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        most = std::max(most, counts[i]);
        const std::string text = stream.push(subject.pieces[i]);
        if (text.empty()) continue;  // a character goes on in the next token
        pieces.push_back({text, double(most) / all, fmt::format("{} of {} heads", most, all)});
        most = 0;
    }
    if (const std::string text = stream.finish(); !text.empty())
        pieces.push_back({text, double(most) / all, fmt::format("{} of {} heads", most, all)});
    return pieces;
}

Document tokens_report(const AnalysisSubject& subject, const TokenCounts& counts) {
    Document document("Kept tokens, " + subject.model);
    document.paragraph(
        fmt::format("Context: {} tokens. The stronger a token's background, the more of the {} (layer, KV "
                    "head) pairs keep it; pointing at it tells how "
                    "many.",
                    subject.pieces.size(), subject.layers.size() * std::size_t(subject.kv_heads)));
    for (std::size_t m = 0; m < subject.methods.size(); ++m) {
        document.heading(subject.methods[m]);
        document.text({coloured_pieces(subject, counts[m])});
    }
    return document;
}

nlohmann::ordered_json tokens_json(const AnalysisSubject& subject, const TokenCounts& counts) {
    nlohmann::ordered_json json = {{"model", subject.model},
                                   {"heads", subject.layers.size() * std::size_t(subject.kv_heads)},
                                   {"tokens", subject.pieces},
                                   {"methods", nlohmann::ordered_json::array()}};
    for (std::size_t m = 0; m < subject.methods.size(); ++m)
        json["methods"].push_back({{"method", subject.methods[m]}, {"kept_by", counts[m]}});
    return json;
}

}  // namespace holdfast
