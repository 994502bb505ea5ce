// A report that is written twice: as Markdown, and as one HTML page that needs nothing else, not even a
// network.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace holdfast {

struct Cell {
    std::string text;
    bool strong = false;

    Cell(std::string t, bool s = false) : text(std::move(t)), strong(s) {}  // NOLINT: rows are lists of texts
    Cell(const char* t) : text(t) {}                                        // NOLINT
};

// The first column names the rows.
struct Table {
    std::vector<std::string> head;
    std::vector<std::vector<Cell>> rows;
};

struct Series {
    std::string name;
    std::vector<double> y;
    std::vector<double> low, high;  // of an interval around each y, or empty
};

// Lines over a number, or bars by name; as a table in Markdown.
struct Chart {
    enum class Kind { lines, bars };
    Kind kind = Kind::lines;
    std::string x_label, y_label;
    std::vector<std::string> x;  // numbers for lines
    std::vector<Series> series;
};

// A colour for each row and column; as a table in Markdown.
struct HeatMap {
    std::string title, row_label, column_label;
    std::vector<int> rows;                    // their numbers
    std::vector<std::vector<double>> values;  // [rows][columns]
    double low = 0, high = 1;                 // ends of the colours
};

// Text whose background says how much, from 0 to 1; without colours in Markdown.
struct ColouredText {
    struct Piece {
        std::string text;
        double share = 0;
        std::string note;  // shown when pointed at
    };
    std::vector<Piece> pieces;
};

class Document {
  public:
    explicit Document(std::string title) : title_(std::move(title)) {}

    void heading(std::string text) { blocks_.emplace_back(Heading{std::move(text)}); }
    void paragraph(std::string text) { blocks_.emplace_back(Paragraph{std::move(text)}); }
    void table(Table table) { blocks_.emplace_back(std::move(table)); }
    void chart(Chart chart) { blocks_.emplace_back(std::move(chart)); }
    // Beside one another where there is room.
    void heat_maps(std::vector<HeatMap> maps) { blocks_.emplace_back(std::move(maps)); }
    void text(ColouredText text) { blocks_.emplace_back(std::move(text)); }

    std::string markdown() const;
    std::string html() const;

  private:
    struct Heading {
        std::string text;
    };
    struct Paragraph {
        std::string text;
    };
    std::string title_;
    std::vector<std::variant<Heading, Paragraph, Table, Chart, std::vector<HeatMap>, ColouredText>> blocks_;
};

}  // namespace holdfast
