// tpce report: binds the pages of studies into one HTML file.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "io/atomic_file.h"
#include "io/error.h"
#include "sim/studies/study_report.h"
#include "tools/command.h"
#include "tools/output.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce report studies
      binds studies/*/page.md into studies/report.html, pictures and all
  tpce report collapse --out collapse.html)";

struct ReportCommand {
  std::string folder;
  std::optional<std::string> out;

  int run() const {
    const std::string path = out ? *out : (std::filesystem::path(folder) / "report.html").string();
    // Not over the pages that it reads.
    if (!path.ends_with(".html")) {
      throw std::invalid_argument(fmt::format("out: got {}, expected a name that ends in .html", io::quote(path)));
    }
    const std::string html = sim::report_html(folder);
    io::AtomicFile file(path);
    file.write(html);
    file.commit();
    print(fmt::format("wrote {}\n", path));
    return 0;
  }
};

}  // namespace

std::vector<Command> add_report(CLI::App& program) {
  CLI::App* app = program.add_subcommand("report", "bind the pages of studies into one HTML file");
  app->footer(kExamples);
  auto command = std::make_shared<ReportCommand>();
  app->add_option("DIR", command->folder, "folder of a study, or of folders of studies")->required();
  app->add_option("--out", command->out, "the file to write (DIR/report.html)")->type_name("F.html");
  return {{app, [command] { return command->run(); }}};
}

}  // namespace tpce::tools
