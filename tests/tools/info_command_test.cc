// tpce info.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

TEST(InfoCommand, NamesVersionBuildBackendsAndLibraries) {
  const TemporaryDirectory directory;
  const Output text = run(directory, {"info"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  for (const char* word : {"tpce 0.", "build", "cpu", "scalar", "simulator", "certified", "MPFR", "Boost"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word;
  }
}

TEST(InfoCommand, JsonSaysWhyABackendIsMissing) {
  const TemporaryDirectory directory;
  const Output output = run(directory, {"info", "--json"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const auto json = nlohmann::json::parse(output.out);
  std::vector<std::string> available;
  for (const auto& backend : json.at("backends")) {
    if (backend.at("available").get<bool>()) {
      available.push_back(backend.at("name"));
    } else {
      EXPECT_FALSE(backend.at("missing").get<std::string>().empty()) << backend;
    }
  }
  for (const char* name : {"scalar", "simd", "reference", "simulator"}) {
    EXPECT_EQ(std::count(available.begin(), available.end(), name), 1) << name;
  }
  EXPECT_EQ(json.at("methods").at(0).at("name"), "canonical");
  EXPECT_FALSE(json.at("build").at("compiler").get<std::string>().empty());
  for (const char* library : {"Highway", "oneTBB", "MPFR", "MPFI", "MPI"}) {
    EXPECT_TRUE(json.at("libraries").contains(library)) << library;
  }
}

// The same three times; where there is no commit, no parentheses either.
TEST(InfoCommand, NamesTheCommitBesideTheVersion) {
  const TemporaryDirectory directory;
  const std::string version = run(directory, {"--version"}).out;
  std::smatch parts;
  ASSERT_TRUE(std::regex_match(version, parts, std::regex("tpce ([0-9.]+)( \\(git ([0-9a-f]{12}(-dirty)?)\\))?\n")))
      << version;
  const bool is_checkout = std::filesystem::exists(TPCE_SOURCE_DIR "/.git") &&
                           std::system("git -C '" TPCE_SOURCE_DIR "' rev-parse --verify HEAD >/dev/null 2>&1") == 0;
  EXPECT_EQ(parts[2].matched, is_checkout) << version;
  EXPECT_EQ(run(directory, {"info"}).out.rfind(version, 0), 0u);
  const auto json = nlohmann::json::parse(run(directory, {"info", "--json"}).out);
  EXPECT_EQ(json.at("version"), parts[1].str());
  EXPECT_EQ(json.at("commit"), parts[3].str());
}

TEST(InfoCommand, ListsTheTargetsOfSimd) {
  const TemporaryDirectory directory;
  const auto json = nlohmann::json::parse(run(directory, {"info", "--json"}).out);
  const auto& targets = json.at("targets");
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back().at("name"), "portable");
  EXPECT_TRUE(targets.back().at("supported").get<bool>());
}

// Sets a variable of the environment for a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

TEST(InfoCommand, ATargetIsForcedOrRefused) {
  const TemporaryDirectory directory;
  {
    const Environment forced("TPCE_TARGET", "portable");
    const Output output = run(directory, {"info", "--fingerprint"});
    EXPECT_EQ(output.out, read_text(TPCE_TEST_DATA "/fingerprint.txt")) << output.err;
    const std::string text = run(directory, {"info"}).out;
    EXPECT_NE(text.find("(portable)"), std::string::npos);
    EXPECT_NE(text.find("\n  portable                  runs here, chosen\n"), std::string::npos) << text;
    EXPECT_EQ(text.find(", chosen"), text.rfind(", chosen")) << text;
  }
  const Environment wrong("TPCE_TARGET", "AVX9");
  const Output refused = run(directory, {"info", "--fingerprint"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err.find("tpce: error: backend: simd is missing: TPCE_TARGET: got 'AVX9', expected one"), 0u)
      << refused.err;
  EXPECT_EQ(run(directory, {"info", "--fingerprint", "--backend", "scalar"}).exit_code, 0);
  const Environment unprintable("TPCE_TARGET", "AVX2\n\x1b[1m");
  const std::string text = run(directory, {"info"}).out;
  EXPECT_NE(text.find(": missing, TPCE_TARGET: got 'AVX2\\n\\x1b[1m', expected one"), std::string::npos) << text;
}

// Opening a GPU takes time, and memory of it: only what uses one, or lists backends, may look for it.
TEST(InfoCommand, AGpuIsLookedForOnlyWhereItMayBeUsed) {
  const TemporaryDirectory directory;
  const bool has_kernels = run(directory, {"info"}).out.find("this build has no CUDA kernels") == std::string::npos;
  const Environment libraries_are_told("LD_DEBUG", "libs");
  const auto looks = [&](const std::vector<std::string>& arguments) {
    return run(directory, arguments).err.find("libcuda.so.1") != std::string::npos;
  };
  EXPECT_EQ(looks({"info"}), has_kernels);
  EXPECT_FALSE(looks({"--help"}));
  EXPECT_FALSE(looks({"info", "--fingerprint", "--backend", "scalar"}));
  EXPECT_FALSE(looks({"loss", "nothing.npy"}));
  EXPECT_FALSE(looks({"parity", "nothing.npy", "--a", "simd", "--b", "scalar"}));
}

// The committed hash is what ties all builds together: clang and g++, and later every backend.
TEST(InfoCommand, FingerprintIsTheCommittedOne) {
  const TemporaryDirectory directory;
  for (const char* backend : {"scalar", "simd"}) {
    const Output output = run(directory, {"info", "--fingerprint", "--backend", backend});
    EXPECT_EQ(output.exit_code, 0) << output.err;
    EXPECT_EQ(output.out, read_text(TPCE_TEST_DATA "/fingerprint.txt"));
  }
}

TEST(InfoCommand, FingerprintCasesDiffer) {
  const TemporaryDirectory directory;
  const Output output = run(directory, {"info", "--fingerprint", "--json"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json.at("fingerprint").get<std::string>() + "\n", read_text(TPCE_TEST_DATA "/fingerprint.txt"));
  // A tp has no say in the bits, so the cases of tp 1 and 3 are equal in pairs; other cases are not all the same.
  std::set<std::string> hashes;
  for (const auto& [name, hash] : json.at("cases").items()) {
    hashes.insert(hash.get<std::string>());
    if (!name.ends_with(" tp=1")) continue;
    const std::string other = name.substr(0, name.size() - 1) + "3";
    EXPECT_EQ(hash, json.at("cases").at(other)) << name;
  }
  EXPECT_GT(hashes.size(), json.at("cases").size() / 3);
}

}  // namespace
}  // namespace tpce::test
