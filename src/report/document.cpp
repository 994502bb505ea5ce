#include "report/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

// What a chart shows, for Markdown.
Table points(const Chart& chart) {
    Table table;
    table.head = {chart.x_label};
    for (const Series& series : chart.series) table.head.push_back(series.name);
    for (std::size_t i = 0; i < chart.x.size(); ++i) {
        table.rows.push_back({chart.x[i]});
        for (const Series& series : chart.series)
            table.rows.back().emplace_back(std::isnan(series.y[i]) ? "-"
                                                                   : fmt::format("{:.3g}", series.y[i]));
    }
    return table;
}

Table cells(const HeatMap& map) {
    Table table;
    table.head = {map.row_label + " \\ " + map.column_label};
    for (std::size_t c = 0; c < map.values.at(0).size(); ++c) table.head.push_back(std::to_string(c));
    for (std::size_t r = 0; r < map.rows.size(); ++r) {
        table.rows.push_back({std::to_string(map.rows[r])});
        for (double value : map.values[r]) table.rows.back().emplace_back(fmt::format("{:.2f}", value));
    }
    return table;
}

std::string svg(const HeatMap& map) {
    const int columns = int(map.values.at(0).size()), rows = int(map.rows.size());
    constexpr int left = 34, top = 6, height = 12;
    const int width = std::clamp(288 / columns, 6, 32);  // of a cell
    const int bottom = top + rows * height;
    const auto text = [](int x, int y, const char* anchor, const std::string& content) {
        return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>", x, y, anchor, content);
    };
    const auto cell = [](int x, int y, int w, int h, double share, const std::string& note) {
        return fmt::format(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
            "fill-opacity=\"{:.3f}\"><title>{}</title></rect>",
            x, y, w, h, std::clamp(share, 0.0, 1.0), note);
    };
    const double range = map.high > map.low ? map.high - map.low : 1;
    std::string figure = fmt::format(
        "<figure><figcaption>{0}</figcaption><svg viewBox=\"0 0 {1} {2}\" width=\"{1}\" role=\"img\" "
        "aria-label=\"{0}\">\n",
        escaped_html(map.title), std::max(left + columns * width, 240) + 6, bottom + 46);
    for (int r = 0; r < rows; ++r) {
        const int y = top + r * height, row = map.rows[std::size_t(r)];
        if (r % 5 == 0) figure += text(left - 4, y + height - 2, "end", std::to_string(row));
        for (int c = 0; c < columns; ++c) {
            const double value = map.values[std::size_t(r)][std::size_t(c)];
            figure +=
                cell(left + c * width, y, width, height, (value - map.low) / range,
                     fmt::format("{} {}, {} {}: {:.3f}", map.row_label, row, map.column_label, c, value));
        }
        figure += "\n";
    }
    for (int c = 0; c < columns; c += std::max(1, 24 / width))
        figure += text(left + c * width + width / 2, bottom + 12, "middle", std::to_string(c));
    figure += text(left, bottom + 26, "start", map.column_label);
    figure += fmt::format("<text transform=\"translate(9 {}) rotate(-90)\" text-anchor=\"end\">{}</text>",
                          top, map.row_label);
    constexpr int steps = 20;  // of the legend
    for (int i = 0; i < steps; ++i)
        figure += cell(left + 66 + i * 5, bottom + 18, 5, 8, (i + 0.5) / steps, "");
    figure += text(left + 62, bottom + 26, "end", fmt::format("{:.2f}", map.low));
    figure += text(left + 170, bottom + 26, "start", fmt::format("{:.2f}", map.high));
    return figure + "</svg></figure>\n";
}

std::string html_text(const ColouredText& coloured) {
    std::string text = "<div class=\"text\">";
    for (const ColouredText::Piece& piece : coloured.pieces)
        text += fmt::format("<span style=\"--share:{:.0f}%\" title=\"{}\">{}</span>", 100 * piece.share,
                            replaced(escaped_html(piece.note), "\"", "&quot;"), escaped_html(piece.text));
    return text + "</div>\n";
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
                       [](const std::vector<HeatMap>& maps) {
                           std::string tables;
                           for (const HeatMap& map : maps)
                               tables += fmt::format("{}:\n\n{}", map.title, markdown_table(cells(map)));
                           return tables;
                       },
                       [](const ColouredText& t) {
                           std::string plain;
                           for (const ColouredText::Piece& piece : t.pieces) plain += piece.text;
                           return plain + "\n\n";
                       },
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
                [](const std::vector<HeatMap>& maps) {
                    std::string figures = "<div class=\"maps\">";
                    for (const HeatMap& map : maps) figures += svg(map);
                    return figures + "</div>\n";
                },
                [](const ColouredText& t) { return html_text(t); },
                [&](const Chart& c) {
                    charts.push_back(chart_json(c));
                    return fmt::format(
                        "<div class=\"chart\"><canvas role=\"img\" aria-label=\"{}\"></canvas></div>\n",
                        escaped_html(c.y_label));
                }},
            block);
    // In a script, "<" could end it.
    const std::string data =
        replaced(charts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "<", "\\u003c");
    const std::string title = escaped_html(title_);
    return filled(page_html[0],
                  {{"title", title}, {"body", body}, {"charts", data}, {"chart.js", chart_js[0]}});
}

}  // namespace holdfast
