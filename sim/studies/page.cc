#include "sim/studies/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "io/atomic_file.h"
#include "io/gnuplot.h"

namespace tpce::sim {
namespace {

// Told apart by readers with any colour vision (Okabe and Ito), black last.
constexpr const char* kColours[] = {"#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00",
                                    "#56b4e9", "#7f7f7f", "#8c564b", "#6a3d9a", "#000000"};

constexpr const char* kFont = "set terminal svg size {},{} font 'sans-serif,14' noenhanced background '#ffffff'\n";

bool is_number(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.+-e% ") == std::string::npos;
}

// A bar would end the cell.
std::string escaped(const std::string& cell) {
  std::string text;
  for (const char c : cell) {
    if (c == '|') text.push_back('\\');
    text.push_back(c);
  }
  return text;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string line(1, '|');
  for (const std::string& cell : cells) line += fmt::format(" {} |", escaped(cell));
  line.push_back('\n');
  return line;
}

std::string markdown_table(const Table& table) {
  std::string text = markdown_row(table.columns);
  text.push_back('|');
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const bool numbers = !table.rows.empty() && std::all_of(table.rows.begin(), table.rows.end(), [&](const auto& row) {
      return row[c].empty() || is_number(row[c]);
    });
    text += numbers ? " ---: |" : " --- |";
  }
  text.push_back('\n');
  for (const auto& row : table.rows) text += markdown_row(row);
  return text;
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  std::string quoted(1, '"');
  for (const char c : cell) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  quoted.push_back('"');
  return quoted;
}

std::string csv_row(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line.push_back(',');
    line += csv_cell(cells[i]);
  }
  line.push_back('\n');
  return line;
}

std::string axis_commands(const Axis& axis, char name) {
  std::string text = fmt::format("set {}label {}\n", name, io::gnuplot_string(axis.label));
  if (axis.logarithmic) text += fmt::format("set logscale {0}\nset format {0} '%.0e'\n", name);
  return text;
}

}  // namespace

std::string gib(std::int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 0x1p30); }

void Table::add(std::vector<std::string> row) {
  if (row.size() != columns.size()) {
    throw std::invalid_argument(fmt::format("row: got {} cells, expected {}", row.size(), columns.size()));
  }
  rows.push_back(std::move(row));
}

std::string svg_of(const LinePlot& plot) {
  std::string script = fmt::format(fmt::runtime(kFont), 900, 520);
  script += fmt::format("set title {}\nset grid\nset border 3\nset tics nomirror\n", io::gnuplot_string(plot.title));
  script += "set key outside right top\n" + axis_commands(plot.x, 'x') + axis_commands(plot.y, 'y');
  std::string commands;
  const auto drawable = [](double value, const Axis& axis) {
    return std::isfinite(value) && (!axis.logarithmic || value > 0);
  };
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    const Series& series = plot.series[s];
    if (series.x.size() != series.y.size()) throw std::invalid_argument("series: got unequal numbers of x and y");
    std::string block = fmt::format("$s{} << EOD\n", s);
    bool any = false;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!drawable(series.x[i], plot.x) || !drawable(series.y[i], plot.y)) {
        block += "\n";  // interrupts the line
        continue;
      }
      any = true;
      block += fmt::format("{:.9g} {:.9g}\n", series.x[i], series.y[i]);
    }
    if (!any) continue;
    script += block + "EOD\n";
    commands += fmt::format("{}$s{} using 1:2 with lines lw 2 lc rgb '{}' title {}", commands.empty() ? "plot " : ", ",
                            s, kColours[s % std::size(kColours)], io::gnuplot_string(series.name));
  }
  if (commands.empty()) throw std::invalid_argument(fmt::format("plot {}: nothing can be drawn", plot.title));
  return io::run_gnuplot(script + commands + "\n");
}

std::string svg_of(const HeatMap& map) {
  const std::size_t rows = map.y.size();
  std::string script = fmt::format(fmt::runtime(kFont), 900, 150 + 26 * std::max<std::size_t>(rows, 4));
  script += fmt::format("set title {}\nset xlabel {}\nset ylabel {}\nset cblabel {}\n", io::gnuplot_string(map.title),
                        io::gnuplot_string(map.x_label), io::gnuplot_string(map.y_label),
                        io::gnuplot_string(map.value_label));
  // viridis, from its published control points
  script +=
      "set palette defined (0 '#440154', 1 '#46327e', 2 '#365c8d', 3 '#277f8e', 4 '#1fa187', 5 '#4ac16d', "
      "6 '#a0da39', 7 '#fde725')\n";
  script +=
      fmt::format("set cbrange [{:.9g}:{:.9g}]\nunset key\nset tics nomirror out\nset ytics (", map.low, map.high);
  for (std::size_t r = 0; r < rows; ++r) {
    script += fmt::format("{}{} {}", r ? ", " : "", io::gnuplot_string(map.y[r]), rows - 1 - r);
  }
  script +=
      fmt::format(")\nset yrange [-0.5:{}]\nset style fill solid 1.0 noborder\n", static_cast<double>(rows) - 0.5);
  // Boxes rather than an image, so that columns may stand at unequal distances.
  const auto edge = [&](std::size_t c) {  // left edge of column c
    if (map.x.size() == 1) return map.x[0] + (c == 0 ? -0.5 : 0.5);
    if (c == 0) return map.x[0] - (map.x[1] - map.x[0]) / 2;
    if (c == map.x.size()) return map.x[c - 1] + (map.x[c - 1] - map.x[c - 2]) / 2;
    return (map.x[c - 1] + map.x[c]) / 2;
  };
  script += fmt::format(
      "set xrange [{:.9g}:{:.9g}]\nset object 1 rectangle from graph 0,0 to graph 1,1 behind "
      "fillcolor rgb '#bbbbbb' fillstyle solid\n",
      edge(0), edge(map.x.size()));
  script += "$cells << EOD\n";
  bool any = false;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < map.x.size(); ++c) {
      const double value = map.values.at(r).at(c);
      if (std::isnan(value)) continue;
      any = true;
      const double y = static_cast<double>(rows - 1 - r);
      script += fmt::format("{:.9g} {} {:.9g} {:.9g} {} {} {:.9g}\n", map.x[c], y, edge(c), edge(c + 1), y - 0.5,
                            y + 0.5, std::clamp(value, map.low, map.high));
    }
  }
  if (!any) throw std::invalid_argument(fmt::format("map {}: nothing can be drawn", map.title));
  return io::run_gnuplot(script + "EOD\nplot $cells using 1:2:3:4:5:6:7 with boxxyerror lc palette\n");
}

std::string svg_of(const BarPlot& plot) {
  double least = HUGE_VAL, largest = 0.0;
  for (const BarPlot::Bars& bars : plot.series) {
    if (bars.values.size() != plot.bins.size())
      throw std::invalid_argument("bars: got unequal numbers of bins and values");
    for (const double value : bars.values) {
      if (value > 0) least = std::min(least, value);
      largest = std::max(largest, value);
    }
  }
  if (!(largest > 0)) throw std::invalid_argument(fmt::format("plot {}: nothing can be drawn", plot.title));
  std::string script = fmt::format(fmt::runtime(kFont), 900, 520);
  script += fmt::format("set title {}\nset xlabel {}\nset ylabel {}\n", io::gnuplot_string(plot.title),
                        io::gnuplot_string(plot.x_label), io::gnuplot_string(plot.y_label));
  // From a decade below the least bar, which then can be seen.
  script += fmt::format(
      "set grid y\nset border 3\nset tics nomirror\nset xtics rotate by -40\nset key outside top center horizontal\n"
      "set logscale y\nset format y '%g'\nset yrange [{:.9g}:{:.9g}]\nset style data histograms\n"
      "set style histogram clustered gap 1\nset style fill solid 1.0 noborder\nset datafile missing '?'\n"
      "$bars << EOD\n",
      std::pow(10.0, std::floor(std::log10(least)) - 1), std::pow(10.0, std::ceil(std::log10(largest))));
  for (std::size_t bin = 0; bin < plot.bins.size(); ++bin) {
    script += io::gnuplot_string(plot.bins[bin]);
    for (const BarPlot::Bars& bars : plot.series) {
      script += bars.values[bin] > 0 ? fmt::format(" {:.9g}", bars.values[bin]) : " ?";
    }
    script += "\n";
  }
  script += "EOD\nplot ";
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    script += fmt::format("{}$bars using {}{} lc rgb '{}' title {}", s > 0 ? ", " : "", s + 2, s == 0 ? ":xtic(1)" : "",
                          kColours[s % std::size(kColours)], io::gnuplot_string(plot.series[s].name));
  }
  return io::run_gnuplot(script + "\n");
}

std::string markdown_of(const Page& page, const std::string& provenance) {
  std::string text = fmt::format("# {}\n\n{}\n", page.title, page.conclusion);
  for (const Section& section : page.sections) {
    if (!section.heading.empty()) text += fmt::format("\n## {}\n", section.heading);
    if (!section.text.empty()) text += fmt::format("\n{}\n", section.text);
    for (const Table& table : section.tables) text += fmt::format("\n{}", markdown_table(table));
    for (const Figure& figure : section.figures) text += fmt::format("\n![{}]({}.svg)\n", figure.caption, figure.name);
  }
  return text + fmt::format("\n{}\n", provenance);
}

std::string csv_of(const Table& table, const std::string& provenance) {
  std::string text = fmt::format("# {}\n{}", provenance, csv_row(table.columns));
  for (const auto& row : table.rows) text += csv_row(row);
  return text;
}

std::vector<std::string> write_page(const std::filesystem::path& folder, const Page& page,
                                    const Provenance& provenance) {
  std::vector<std::string> names;
  const auto write = [&](const std::string& name, const std::string& text) {
    io::write_file((folder / name).string(), text);
    names.push_back(name);
  };
  for (const Section& section : page.sections) {
    for (const Figure& figure : section.figures) write(figure.name + ".svg", figure.svg);
  }
  for (const Attachment& file : page.files) write(file.name, file.text);
  write("data.csv", csv_of(page.data, fmt::format("{}, tpce {}", provenance.command, provenance.version)));
  write("page.md", markdown_of(page, fmt::format("Made by `{}` of tpce {}.", provenance.command, provenance.version)));
  return names;
}

}  // namespace tpce::sim
