#include "report/document.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "chart_js.hpp"
#include "page_html.hpp"

namespace holdfast {

namespace {

std::string replaced(std::string text, std::string_view mark, std::string_view by) {
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + by.size()))
        text.replace(at, mark.size(), by);
    return text;
}

// The template with each {{name}} replaced; what is put in isn't looked at again.
std::string filled(std::string_view text, const std::map<std::string_view, std::string_view>& values) {
    std::string result;
    for (std::size_t at = text.find("{{"); at != std::string_view::npos; at = text.find("{{")) {
        const std::size_t end = text.find("}}", at);
        result += text.substr(0, at);
        result += values.at(text.substr(at + 2, end - at - 2));
        text.remove_prefix(end + 2);
    }
    result += text;
    return result;
}

std::string escaped_html(std::string text) {
    return replaced(replaced(replaced(std::move(text), "&", "&amp;"), "<", "&lt;"), ">", "&gt;");
}

std::string escaped_markdown(std::string text) {
    return replaced(std::move(text), "|", "\\|");
}

template <class... Visitors>
struct Overloaded : Visitors... {
    using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

std::string markdown_table(const Table& table) {
    std::string text = "|";
    for (const std::string& name : table.head) text += fmt::format(" {} |", escaped_markdown(name));
    text += "\n|";
    for (std::size_t i = 0; i < table.head.size(); ++i) text += i == 0 ? "---|" : "---:|";
    for (const std::vector<Cell>& row : table.rows) {
        text += "\n|";
        for (const Cell& cell : row) {
            const char* mark = cell.strong ? "**" : "";
            text += fmt::format(" {0}{1}{0} |", mark, escaped_markdown(cell.text));
        }
    }
    return text + "\n\n";
}

std::string html_table(const Table& table) {
    std::string text = "<div class=\"wide\"><table><thead><tr>";
    for (const std::string& name : table.head) text += fmt::format("<th>{}</th>", escaped_html(name));
    text += "</tr></thead><tbody>\n";
    for (const std::vector<Cell>& row : table.rows) {
        text += "<tr>";
        for (std::size_t i = 0; i < row.size(); ++i)
            text += fmt::format("<{0}{1}>{2}</{0}>", i == 0 ? "th" : "td",
                                row[i].strong ? " class=\"strong\"" : "", escaped_html(row[i].text));
        text += "</tr>\n";
    }
    return text + "</tbody></table></div>\n";
}

// What a chart shows, for Markdown and for screen readers.
Table points(const Chart& chart) {
    Table table;
    table.head = {chart.x_label};
    for (const Series& series : chart.series) table.head.push_back(series.name);
    for (std::size_t i = 0; i < chart.x.size(); ++i) {
        table.rows.push_back({chart.x[i]});
        for (const Series& series : chart.series)
            table.rows.back().push_back(fmt::format("{:.1f}", series.y[i]));
    }
    return table;
}

nlohmann::ordered_json chart_json(const Chart& chart) {
    nlohmann::ordered_json series = nlohmann::ordered_json::array();
    for (const Series& s : chart.series)
        series.push_back({{"name", s.name}, {"y", s.y}, {"low", s.low}, {"high", s.high}});
    return {{"kind", chart.kind == Chart::Kind::lines ? "lines" : "bars"},
            {"xLabel", chart.x_label},
            {"yLabel", chart.y_label},
            {"x", chart.x},
            {"series", series}};
}

}  // namespace

std::string Document::markdown() const {
    std::string text = fmt::format("# {}\n\n", title_);
    for (const auto& block : blocks_)
        text += std::visit(
            Overloaded{[](const Heading& h) { return fmt::format("## {}\n\n", h.text); },
                       [](const Paragraph& p) { return p.text + "\n\n"; },
                       [](const Table& t) { return markdown_table(t); },
                       [](const Chart& c) { return c.y_label + ":\n\n" + markdown_table(points(c)); }},
            block);
    text.pop_back();
    return text;
}

std::string Document::html() const {
    std::string body;
    nlohmann::ordered_json charts = nlohmann::ordered_json::array();
    for (const auto& block : blocks_)
        body += std::visit(
            Overloaded{
                [](const Heading& h) { return fmt::format("<h2>{}</h2>\n", escaped_html(h.text)); },
                [](const Paragraph& p) { return fmt::format("<p>{}</p>\n", escaped_html(p.text)); },
                [](const Table& t) { return html_table(t); },
                [&](const Chart& c) {
                    charts.push_back(chart_json(c));
                    return fmt::format(
                        "<div class=\"chart\"><canvas role=\"img\" aria-label=\"{}\"></canvas></div>\n",
                        escaped_html(c.y_label));
                }},
            block);
    // In a script, "</" could end it.
    const std::string data =
        replaced(charts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "</", "<\\/");
    const std::string title = escaped_html(title_);
    return filled(page_html[0],
                  {{"title", title}, {"body", body}, {"charts", data}, {"chart.js", chart_js[0]}});
}

}  // namespace holdfast
