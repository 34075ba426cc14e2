// What a study finds, as a page: text, tables and plots that any Markdown viewer shows and `tpce report` binds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tpce::sim {

// Cells are text already; columns of numbers are set to the right.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;

  // Throws std::invalid_argument where the row has not one cell a column.
  void add(std::vector<std::string> row);
};

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // one each x; what is not finite is left out, and on a logarithmic axis what is not above 0
};

struct Axis {
  std::string label;
  bool logarithmic = false;
};

struct LinePlot {
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series;
};

struct HeatMap {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::string value_label;
  std::vector<double> x;                    // of the columns, rising
  std::vector<std::string> y;               // names of the rows, from the top
  std::vector<std::vector<double>> values;  // [rows][columns]; NaN is drawn grey
  double low = 0.0;                         // values are cut off at the ends of the colour scale
  double high = 1.0;
};

// Bars side by side over the names of bins; the axis of values is logarithmic, so that a bar of 0 is none.
struct BarPlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> bins;
  struct Bars {
    std::string name;
    std::vector<double> values;  // one a bin, at least 0
  };
  std::vector<Bars> series;
};

// An SVG picture, drawn by gnuplot; throw as io::run_gnuplot does.
std::string svg_of(const LinePlot& plot);
std::string svg_of(const HeatMap& map);
std::string svg_of(const BarPlot& plot);

// A number of bytes in GiB, two decimals.
std::string gib(std::int64_t bytes);

struct Figure {
  std::string name;  // of the file, without .svg
  std::string svg;
  std::string caption;
};

struct Section {
  std::string heading = {};  // empty: none
  std::string text = {};     // Markdown
  std::vector<Table> tables = {};
  std::vector<Figure> figures = {};
};

// Another file beside the page.
struct Attachment {
  std::string name;
  std::string text;
};

struct Page {
  std::string title;
  std::string conclusion;  // the answer to the study's question, one paragraph of Markdown
  std::vector<Section> sections;
  Table data;                          // every number behind the page, for data.csv
  std::vector<Attachment> files = {};  // in formats of their own
};

// GitHub's flavour of Markdown; figures as links to NAME.svg beside it. `provenance` is the last paragraph.
std::string markdown_of(const Page& page, const std::string& provenance);

// What made a page.
struct Provenance {
  std::string command;
  std::string version;  // of the program
};

// Writes the page's pictures, its files, data.csv and, last, page.md into a folder that is there. Returns their names.
std::vector<std::string> write_page(const std::filesystem::path& folder, const Page& page,
                                    const Provenance& provenance);

// RFC 4180, with `provenance` in a comment line before the header.
std::string csv_of(const Table& table, const std::string& provenance);

}  // namespace tpce::sim
