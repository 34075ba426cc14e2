// tpce collapse.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

// Loss of one method at the margin nearest to the wanted one, from the CSV.
std::string loss_at(const std::string& csv, double margin, const std::string& name) {
  std::istringstream lines(csv);
  std::string best, line;
  double distance = 1e9;
  std::getline(lines, line);
  EXPECT_EQ(line.rfind("margin,target_logit,name,loss,", 0), 0u) << line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string at, logit, method, loss;
    std::getline(fields, at, ',');
    std::getline(fields, logit, ',');
    std::getline(fields, method, ',');
    std::getline(fields, loss, ',');
    const double off = std::abs(std::stod(at) - margin);
    if (method != name || off >= distance) continue;
    distance = off;
    best = loss;
  }
  return best;
}

TEST(CollapseCommand, WritesATableACsvAndAPlot) {
  const TemporaryDirectory directory;
  const Output output = run(directory, {"collapse", "--vocab", "2", "--tp", "1", "--out", directory / "new/plots"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.err, "");
  for (const char* word : {"certified", "canonical", "log_softmax", "16.63553", "103.97", "collapse.csv"}) {
    EXPECT_NE(output.out.find(word), std::string::npos) << word;
  }
  const std::string csv = read_text(directory / "new/plots/collapse.csv");
  EXPECT_EQ(std::stof(loss_at(csv, 20, "canonical")), 2.0611537e-9f);
  EXPECT_EQ(std::stof(loss_at(csv, 20, "certified")), 2.0611537e-9f);
  EXPECT_EQ(std::stof(loss_at(csv, 20, "log_softmax")), 0.0f);
  EXPECT_NE(std::stof(loss_at(csv, 16.5, "log_softmax")), 0.0f);
  EXPECT_EQ(read_text(directory / "new/plots/collapse.svg").rfind("<?xml", 0), 0u);
}

TEST(CollapseCommand, WithoutAPlaceToWriteItPrints) {
  const TemporaryDirectory directory;
  const Output output = run(directory, {"collapse", "--vocab", "33"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_NE(output.out.find("target gradient"), std::string::npos);
  EXPECT_TRUE(directory.names().empty());
}

TEST(CollapseCommand, RefusesAndLeavesNothing) {
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"--vocab", "1"}, {"--vocab", "-5"}, {"--vocab", "1000000000000"}, {"--tp", "0"}, {"--tp", "x"}};
  for (const auto& [option, value] : wrong) {
    SCOPED_TRACE(option + value);
    const Output output = run(directory, {"collapse", option, value, "--out", directory / "plots"});
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_EQ(output.err.rfind("tpce: error: ", 0), 0u) << output.err;
    EXPECT_NE(output.err.find(option.substr(2)), std::string::npos) << output.err;
    EXPECT_NE(output.err.find(value), std::string::npos) << output.err;
    EXPECT_TRUE(directory.names().empty());
  }
  write_text(directory / "file", "x");
  EXPECT_EQ(run(directory, {"collapse", "--out", directory / "file"}).exit_code, 2);
  EXPECT_EQ(run(directory, {"collapse", "--out", directory / "file/below"}).exit_code, 2);
}

}  // namespace
}  // namespace tpce::test
