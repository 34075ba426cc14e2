// The report: every page, pictures inside, nothing that runs.
#include "sim/studies/study_report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>

namespace tpce::sim {
namespace {

namespace fs = std::filesystem;

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    std::string name = (fs::temp_directory_path() / "report.XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ReportTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  std::string message() const {
    try {
      report_html(folder_);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return {};
  }

  fs::path folder_;
};

TEST_F(ReportTest, BindsPagesWithTheirPictures) {
  write("zebra/page.md", "# Of zebras\n\nThey are *striped*.\n\n## Part\n\n| a | b |\n| --- | ---: |\n| x | 1 |\n");
  write("memory/page.md", "# Of memory\n\nIt is kept.\n\n![A dot](dot.svg)\n\nLast words.\n");
  write("memory/dot.svg", "<svg/>");
  const std::string html = report_html(folder_);
  EXPECT_LT(html.find("Of memory"), html.find("Of zebras"));  // in the order of studies()
  EXPECT_NE(html.find("src=\"data:image/svg+xml;base64,PHN2Zy8+\" alt=\"A dot\""), std::string::npos) << html;
  EXPECT_NE(html.find("<td align=\"right\">1</td>"), std::string::npos);
  EXPECT_NE(html.find("<h3>Part</h3>"), std::string::npos);
  EXPECT_NE(html.find("<dd>They are <em>striped</em>."), std::string::npos);
  // One file that asks for nothing: every address is inside it.
  const std::regex address("(?:src|href)=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), address), end; at != end; ++at) {
    EXPECT_TRUE(std::regex_search(std::string((*at)[1]), std::regex("^(data:|#)"))) << (*at)[1];
  }
}

TEST_F(ReportTest, TitleIsText) {
  write("page.md", "# One\n\nAlone.\n");
  EXPECT_NE(report_html(folder_, "a < b").find("<h1>a &lt; b</h1>"), std::string::npos);
  EXPECT_NE(report_html(folder_).find(std::string("<title>") + kStudiesTitle), std::string::npos);
}

TEST_F(ReportTest, OfOneStudy) {
  write("page.md", "# One\n\nAlone.\n");
  EXPECT_NE(report_html(folder_).find("Alone."), std::string::npos);
}

TEST_F(ReportTest, LeavesOutWhatWouldRun) {
  write("page.md",
        "# <script>alert(1)</script>\n\nText <script>alert(2)</script> [x](javascript:alert(3))\n\n<img src=x>\n");
  const std::string html = report_html(folder_);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("javascript:"), std::string::npos);
  EXPECT_EQ(html.find("<img src=x"), std::string::npos);
}

TEST_F(ReportTest, ErrorsNameTheFile) {
  EXPECT_NE(message().find("holds no page.md"), std::string::npos);
  write("a/page.md", "# A\n\nText.\n\n![x](missing.svg)\n");
  EXPECT_NE(message().find("missing.svg: cannot be read"), std::string::npos) << message();
  write("a/page.md", "# A\n\nText.\n\n![x](../secret.svg)\n");
  EXPECT_NE(message().find("expected an .svg file beside it"), std::string::npos) << message();
  write("a/page.md", "only text\n");
  EXPECT_NE(message().find("expected a heading, then a paragraph"), std::string::npos) << message();
  EXPECT_THROW(report_html(folder_ / "none"), std::invalid_argument);
}

}  // namespace
}  // namespace tpce::sim
