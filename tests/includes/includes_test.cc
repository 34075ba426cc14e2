// Dependencies between folders point one way. This reads the #include lines of every source file and holds them against
// one table.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

// Plain data that says what the problem is, and computes nothing. The reference may see no more of tpce/ than this,
// since a proof must share no formula and no constant with what it proves.
const std::string kProblem = "tpce: problem headers";
const std::set<std::string> kProblemHeaders = {"tpce/dtype.h",      "tpce/matrix.h",  "tpce/batch.h",
                                               "tpce/shard_plan.h", "tpce/options.h", "tpce/platform.h"};

// What each folder may include, besides itself. A folder that is allowed is allowed with those in it; one in a folder
// has the line of its own where there is one.
const std::map<std::string, Strings> kAllowed = {
    {kProblem, {}},
    {"tpce", {kProblem}},
    {"reference", {kProblem}},
    {"simd", {kProblem, "tpce"}},
    {"gpu", {kProblem, "tpce"}},
    {"gpu/production", {kProblem, "tpce", "gpu"}},
    {"mpi", {kProblem, "tpce"}},
    {"io", {kProblem, "tpce"}},
    {"golden", {kProblem, "tpce", "io"}},
    {"sim", {kProblem, "tpce", "reference", "simd", "io", "golden"}},
    {"sim/order", {}},
    {"sim/precision", {kProblem, "tpce", "sim/order"}},
    {"sim/methods", {kProblem, "tpce", "sim/order", "sim/precision"}},
    {"sim/train", {kProblem, "tpce", "simd", "io", "sim/order", "sim/precision", "sim/methods"}},
    {"sim/studies", {kProblem, "tpce", "reference", "simd", "io", "golden", "sim"}},
    {"sim/parity", {kProblem, "tpce", "reference", "io", "sim/precision", "sim/methods", "sim/studies"}},
    {"tools", {kProblem, "tpce", "reference", "simd", "gpu", "mpi", "io", "golden", "sim"}},
    {"bench", {kProblem, "tpce", "simd", "gpu", "io", "sim"}},
    {"tests", {kProblem, "tpce", "reference", "simd", "gpu", "mpi", "io", "golden", "sim", "tools"}},
};

// Folders with C++ that is not part of the build's layers.
const std::set<std::string> kSkipped = {"build"};

// The entry of kAllowed that a path such as "tpce/dtype.h" falls under, the innermost one; the first component where
// there is none.
std::string group_of(const std::string& path) {
  if (kProblemHeaders.contains(path)) return kProblem;
  for (std::size_t end = path.rfind('/'); end != std::string::npos && end > 0; end = path.rfind('/', end - 1)) {
    if (kAllowed.contains(path.substr(0, end))) return path.substr(0, end);
  }
  return path.substr(0, path.find('/'));
}

bool allows(const Strings& allowed, const std::string& from, const std::string& to) {
  const auto covers = [&](const std::string& folder) { return to == folder || to.starts_with(folder + "/"); };
  return covers(from) || std::any_of(allowed.begin(), allowed.end(), covers);
}

// Our own headers among the #include lines: everything in quotes, and <folder/...> of a folder of ours.
Strings own_includes(const fs::path& file) {
  static const std::regex include_line(R"(^\s*#\s*include\s*(["<])([^">]+)[">])");
  Strings found;
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    std::smatch match;
    if (!std::regex_search(line, match, include_line)) continue;
    if (match[1] == "\"" || kAllowed.contains(group_of(match[2]))) found.push_back(match[2]);
  }
  return found;
}

// One line for each include below root that the table does not allow, and for each folder that it does not name.
Strings violations(const fs::path& root) {
  static const std::set<std::string> extensions = {".h", ".cc", ".cu", ".cuh", ".inc"};
  Strings found;
  for (fs::recursive_directory_iterator it(root), end; it != end; ++it) {
    const std::string path = it->path().lexically_relative(root).generic_string();
    if (it->is_directory() && (kSkipped.contains(path) || path.starts_with("."))) it.disable_recursion_pending();
    if (!it->is_regular_file() || !extensions.contains(it->path().extension().string())) continue;
    // A project of its own, which sees the installed headers.
    if (path.starts_with("tests/install/consumer/")) continue;

    const std::string from = group_of(path);
    const auto rule = kAllowed.find(from);
    if (rule == kAllowed.end()) {
      found.push_back(path + ": folder " + from + "/ has no line in tests/includes/includes_test.cc");
      continue;
    }
    for (const std::string& include : own_includes(it->path())) {
      const std::string to = group_of(include);
      if (!kAllowed.contains(to)) {
        found.push_back(path + ": \"" + include + "\" is not \"folder/file.h\" from the repository's root");
      } else if (!allows(rule->second, from, to)) {
        found.push_back(path + ": " + from + " may not include \"" + include + "\"");
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(Includes, PointOneWay) {
  for (const std::string& violation : violations(TPCE_SOURCE_DIR)) ADD_FAILURE() << violation;
}

TEST(Includes, EveryFolderOfTheTableHasAReadme) {
  for (const auto& [folder, allowed] : kAllowed) {
    if (folder == kProblem) continue;
    EXPECT_TRUE(fs::exists(fs::path(TPCE_SOURCE_DIR) / folder / "README.md")) << folder;
  }
}

TEST(Includes, ProblemHeadersExist) {
  for (const std::string& header : kProblemHeaders) {
    EXPECT_TRUE(fs::exists(fs::path(TPCE_SOURCE_DIR) / header)) << header;
  }
}

// A tree with one file of each kind of violation, and files that are allowed.
TEST(Includes, ViolationsAreFound) {
  const fs::path root = fs::path(::testing::TempDir()) / ("includes_test." + std::to_string(getpid()));
  fs::remove_all(root);
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  write("tpce/good.h", "#include <vector>\n#include \"tpce/dtype.h\"\n");
  write("tpce/up.cc", "#include \"io/npy.h\"\n");
  write("tpce/angle.cc", "  #  include <golden/file.h>\n");
  write("tpce/options.h", "#include \"tpce/exp_split.h\"\n");
  write("reference/good.cc", "#include \"tpce/batch.h\"\n#include \"reference/certified.h\"\n");
  write("reference/numerics.cc", "#include \"tpce/exp_split.h\"\n");
  write("sim/methods/file.cc", "#include \"mpi/file.h\"\n");
  write("sim/methods/good.cc", "#include \"sim/order/sum_order.h\"\n");
  write("sim/order/up.cc", "#include \"sim/methods/method.h\"\n");
  write("sim/studies/good.cc", "#include \"sim/train/trainer.h\"\n");
  write("golden/good.cc", "#include \"io/npy.h\"\n#include \"tpce/cross_entropy.h\"\n");
  write("io/unrooted.cc", "#include \"npy.h\"\n");
  write("unknown/file.cc", "");
  write("build/release/file.cc", "#include \"anything.h\"\n");

  const Strings expected = {
      "io/unrooted.cc: \"npy.h\" is not \"folder/file.h\" from the repository's root",
      "reference/numerics.cc: reference may not include \"tpce/exp_split.h\"",
      "sim/methods/file.cc: sim/methods may not include \"mpi/file.h\"",
      "sim/order/up.cc: sim/order may not include \"sim/methods/method.h\"",
      "tpce/angle.cc: tpce may not include \"golden/file.h\"",
      "tpce/options.h: tpce: problem headers may not include \"tpce/exp_split.h\"",
      "tpce/up.cc: tpce may not include \"io/npy.h\"",
      "unknown/file.cc: folder unknown/ has no line in tests/includes/includes_test.cc",
  };
  EXPECT_EQ(violations(root), expected);
  fs::remove_all(root);
}

}  // namespace
