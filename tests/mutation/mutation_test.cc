// Each mutant is compiled into subject.cc and must be noticed. kCertified: some value leaves the bound that a certified
// or exact value sets. kBits: every value stays inside (the change is smaller than what fp32 resolves, or a convention
// of the definition), and the hash of the bits differs.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <regex>
#include <stdexcept>
#include <string>

#include "tests/mutation/cases.h"
#include "tests/mutation/mutants.h"

namespace tpce::testing {
namespace {

namespace fs = std::filesystem;

// The bits of the canonical algorithm, as subject.cc hashes them: the same for every compiler and machine.
constexpr const char* kExpectedBits = "d8a6c5eef41b8b03";

std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What a command prints, and its exit status.
struct Output {
  int status = -1;
  std::string text;
};

Output output_of(const std::string& command) {
  Output output;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.text.append(buffer, n);
  output.status = pclose(pipe);
  return output;
}

// A folder that is removed with its contents.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::path(::testing::TempDir()) / "mutation.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class Mutation : public ::testing::TestWithParam<Mutant> {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch;
    std::ofstream(scratch_->path() / "cases.txt") << certified_cases();
  }
  static void TearDownTestSuite() {
    delete scratch_;
    scratch_ = nullptr;
  }

  // Compiles the subject with `first` before the true headers, and runs it over the cases. Unoptimised: the bits do not
  // depend on it, and compilation is what takes the time.
  static Output run_subject(const fs::path& first) {
    const fs::path program = first / "subject";
    const Output compiled =
        output_of(TPCE_COMPILER " -std=c++20 -O0 -ffp-contract=off -I" + first.string() +
                  " -I" TPCE_SOURCE_DIR " " TPCE_SOURCE_DIR "/tests/mutation/subject.cc -o " + program.string());
    if (compiled.status != 0) throw std::runtime_error("does not compile:\n" + compiled.text);
    return output_of(program.string() + ' ' + (scratch_->path() / "cases.txt").string());
  }

  static Scratch* scratch_;
};
Scratch* Mutation::scratch_ = nullptr;

TEST_F(Mutation, TheOriginalIsRight) {
  fs::create_directory(scratch_->path() / "original");
  EXPECT_EQ(run_subject(scratch_->path() / "original").text, std::string("certified 0\nbits ") + kExpectedBits + "\n");
}

TEST_P(Mutation, IsNoticed) {
  const Mutant& mutant = GetParam();
  std::string text = read_file(fs::path(TPCE_SOURCE_DIR) / "tpce" / mutant.file);
  const std::string find = mutant.find;
  const std::size_t at = text.find(find);
  ASSERT_NE(at, std::string::npos) << "tpce/" << mutant.file << " no longer holds: " << find;
  ASSERT_EQ(text.find(find, at + 1), std::string::npos) << "tpce/" << mutant.file << " holds twice: " << find;
  text.replace(at, find.size(), mutant.replace);

  const Scratch mutated;
  fs::create_directory(mutated.path() / "tpce");
  std::ofstream(mutated.path() / "tpce" / mutant.file) << text;
  const Output output = run_subject(mutated.path());
  int wrong = -1;
  char bits[32] = "";
  const bool finished =
      output.status == 0 && std::sscanf(output.text.c_str(), "certified %d\nbits %31s", &wrong, bits) == 2;
  // A mutant that crashes or hangs is noticed as well as one that is wrong.
  const bool by_certified = !finished || wrong != 0;
  if (mutant.noticed_by == By::kCertified) {
    EXPECT_TRUE(by_certified) << "no certified value notices";
  } else {
    EXPECT_FALSE(by_certified) << "certified values notice as well: say so in mutants.h";
    EXPECT_STRNE(bits, kExpectedBits) << "nothing notices";
  }
}
INSTANTIATE_TEST_SUITE_P(Mutants, Mutation, ::testing::ValuesIn(kMutants));

// A constant that is added to the numeric headers needs a mutant.
TEST(Mutants, NameEveryConstant) {
  const std::regex declaration(R"(constexpr (?:float|double) (k\w+) = )");
  for (const char* file : {"dtype.h", "exp_split.h", "fp64_math.h", "binned_sum.h", "register_form.h", "row_partial.h",
                           "row_finalize.h"}) {
    const std::string text = read_file(fs::path(TPCE_SOURCE_DIR) / "tpce" / file);
    ASSERT_FALSE(text.empty()) << file;
    for (std::sregex_iterator match(text.begin(), text.end(), declaration), end; match != end; ++match) {
      const std::string name = (*match)[1];
      const bool found = std::any_of(std::begin(kMutants), std::end(kMutants), [&](const Mutant& mutant) {
        return std::string(mutant.file) == file && std::string(mutant.find).find(name + " = ") != std::string::npos;
      });
      EXPECT_TRUE(found) << "tpce/" << file << ": no mutant changes " << name;
    }
  }
}

}  // namespace
}  // namespace tpce::testing
