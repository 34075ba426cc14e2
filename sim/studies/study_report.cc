#include "sim/studies/study_report.h"

#include <cmark-gfm-core-extensions.h>
#include <cmark-gfm.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "io/error.h"
#include "sim/studies/study.h"

namespace tpce::sim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --soft: #57606a; --line: #d0d7de; --mark: #f6f8fa;
  --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0d1117; --soft: #9198a1; --line: #3d444d;
  --mark: #161b22; --link: #6cb6ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; font: 1rem/1.55 system-ui, sans-serif;
  color: var(--text); background: var(--back); overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.4rem; line-height: 1.3; margin-top: 3.5rem;
  padding-top: 1rem; border-top: 1px solid var(--line); } h3 { font-size: 1.12rem; margin-top: 2rem; }
p, ul, ol { max-width: 46rem; }
a { color: var(--link); }
code { font: 0.88em ui-monospace, monospace; background: var(--mark); padding: 0.1em 0.3em; border-radius: 4px; }
pre { background: var(--mark); padding: 0.8rem; overflow-x: auto; border-radius: 6px; } pre code { padding: 0; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { text-align: left; } th[align=right] { text-align: right; }
img { width: 100%; max-width: 56rem; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 6px; }
nav dt { margin-top: 0.9rem; font-weight: 600; } nav dd { margin: 0.2rem 0 0; color: var(--soft); max-width: 46rem; }
)";

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) io::fail(path.string(), "cannot be read");
  return text.str();
}

std::string base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::string html_escaped(const std::string& text) {
  std::string html;
  for (const char c : text) {
    if (c == '&')
      html += "&amp;";
    else if (c == '<')
      html += "&lt;";
    else if (c == '>')
      html += "&gt;";
    else if (c == '"')
      html += "&quot;";
    else
      html += c;
  }
  return html;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

struct NodeDeleter {
  void operator()(cmark_node* node) const { cmark_node_free(node); }
};
using Document = std::unique_ptr<cmark_node, NodeDeleter>;

constexpr int kOptions = CMARK_OPT_DEFAULT | CMARK_OPT_VALIDATE_UTF8;  // raw HTML in a page is left out

struct Parser {
  cmark_parser* parser = cmark_parser_new(kOptions);
  Parser() {
    cmark_gfm_core_extensions_ensure_registered();
    cmark_parser_attach_syntax_extension(parser, cmark_find_syntax_extension("table"));
  }
  ~Parser() { cmark_parser_free(parser); }
  Parser(const Parser&) = delete;

  std::string html(cmark_node* node) const {
    const std::unique_ptr<char, void (*)(void*)> text(
        cmark_render_html(node, kOptions, cmark_parser_get_syntax_extensions(parser)), std::free);
    return text.get();
  }
};

struct BoundPage {
  std::string name;        // of its folder
  std::string title;       // HTML of its heading
  std::string conclusion;  // HTML of its first paragraph
  std::string body;        // HTML after the heading
};

// Each picture's link becomes a place that no page can hold otherwise, to be replaced by the picture itself: the
// renderer would leave out an SVG inside a link.
std::map<std::string, std::string> take_pictures(cmark_node* document, const fs::path& folder) {
  std::map<std::string, std::string> pictures;
  std::unique_ptr<cmark_iter, void (*)(cmark_iter*)> walk(cmark_iter_new(document), cmark_iter_free);
  for (cmark_event_type event; (event = cmark_iter_next(walk.get())) != CMARK_EVENT_DONE;) {
    cmark_node* node = cmark_iter_get_node(walk.get());
    if (event != CMARK_EVENT_ENTER || cmark_node_get_type(node) != CMARK_NODE_IMAGE) continue;
    const std::string file = cmark_node_get_url(node);
    if (fs::path(file).has_parent_path() || !file.ends_with(".svg")) {
      io::fail((folder / "page.md").string(), "shows the picture {}, expected an .svg file beside it", io::quote(file));
    }
    const std::string place = fmt::format("picture-{}.svg", pictures.size());
    pictures["src=\"" + place + "\""] = "src=\"data:image/svg+xml;base64," + base64(read(folder / file)) + "\"";
    cmark_node_set_url(node, place.c_str());
  }
  return pictures;
}

BoundPage bind(const fs::path& folder) {
  const std::string markdown = read(folder / "page.md");
  const Parser parser;
  cmark_parser_feed(parser.parser, markdown.data(), markdown.size());
  const Document document(cmark_parser_finish(parser.parser));
  const auto pictures = take_pictures(document.get(), folder);
  BoundPage page{fs::weakly_canonical(folder).filename().string(), {}, {}, {}};
  cmark_node* heading = cmark_node_first_child(document.get());
  cmark_node* conclusion = heading != nullptr ? cmark_node_next(heading) : nullptr;
  if (conclusion == nullptr || cmark_node_get_type(heading) != CMARK_NODE_HEADING ||
      cmark_node_get_type(conclusion) != CMARK_NODE_PARAGRAPH) {
    io::fail((folder / "page.md").string(), "expected a heading, then a paragraph");
  }
  page.conclusion = parser.html(conclusion);
  page.title = parser.html(heading);
  page.title = page.title.substr(page.title.find('>') + 1);
  page.title = page.title.substr(0, page.title.rfind("</h"));
  cmark_node_free(heading);
  page.body = parser.html(document.get());
  // A page's sections stand below its own heading, which is the second level here.
  replace_all(page.body, "<h2>", "<h3>");
  replace_all(page.body, "</h2>", "</h3>");
  replace_all(page.body, "<table>", "<div class=\"table\" tabindex=\"0\"><table>");
  replace_all(page.body, "</table>", "</table></div>");
  for (const auto& [place, picture] : pictures) replace_all(page.body, place, picture);
  return page;
}

std::vector<fs::path> pages_below(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) io::fail(folder.string(), "is no directory");
  if (fs::is_regular_file(folder / "page.md")) return {folder};
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::is_regular_file(entry.path() / "page.md")) found.push_back(entry.path());
  }
  if (found.empty()) io::fail(folder.string(), "holds no page.md, nor does a folder in it; tpce study writes them");
  const auto place = [](const fs::path& path) {
    const auto all = studies();
    const auto at = std::find_if(all.begin(), all.end(), [&](const Study* s) { return s->name() == path.filename(); });
    return at - all.begin();
  };
  std::sort(found.begin(), found.end(),
            [&](const fs::path& a, const fs::path& b) { return std::pair(place(a), a) < std::pair(place(b), b); });
  return found;
}

}  // namespace

std::string report_html(const fs::path& folder, const std::string& title) {
  std::string contents, bodies;
  for (const fs::path& path : pages_below(folder)) {
    const BoundPage page = bind(path);
    const std::string id = html_escaped(page.name);
    std::string conclusion = page.conclusion;
    replace_all(conclusion, "<p>", "");
    replace_all(conclusion, "</p>", "");
    contents += fmt::format("<dt><a href=\"#{}\">{}</a></dt>\n<dd>{}</dd>\n", id, page.title, conclusion);
    bodies += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, page.title, page.body);
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<link rel=\"icon\" href=\"data:,\">\n"
      "<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<nav>\n<dl>\n{2}</dl>\n</nav>\n{3}</body>\n</html>\n",
      html_escaped(title), kStyle, contents, bodies);
}

}  // namespace tpce::sim
