// docs/cli.md, man pages and completions are those of the program as it is.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

// To make docs/cli.md again: build/release/bin/tpce manual > docs/cli.md
TEST(ManualCommand, DocsAreUpToDate) {
  const TemporaryDirectory directory;
  const Output output = run(directory, {"manual"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.out, read_text(TPCE_SOURCE_DIR "/docs/cli.md"));
  EXPECT_EQ(output.out.find("[]"), std::string::npos);  // the empty list that an argument has before it is read
}

TEST(ManualCommand, WritesAPageForEveryCommand) {
  const TemporaryDirectory directory;
  ASSERT_EQ(run(directory, {"manual", "--install-tree", directory.path()}).exit_code, 0);
  for (const char* page : {"tpce", "tpce-loss", "tpce-parity", "tpce-info", "tpce-collapse", "tpce-golden",
                           "tpce-golden-make", "tpce-golden-check", "tpce-golden-update", "tpce-golden-compare",
                           "tpce-train", "tpce-study", "tpce-report", "tpce-completion"}) {
    const std::string text = read_text(directory / (std::string("man/man1/") + page + ".1"));
    EXPECT_NE(text.find(".SH OPTIONS"), std::string::npos) << page;
  }
  EXPECT_FALSE(read_text(directory / "zsh/site-functions/_tpce").empty());
}

// What bash offers after these words, with the last one to be completed.
std::string offered(const TemporaryDirectory& directory, const std::string& words) {
  const std::string script = "source <(" TPCE_PROGRAM " completion bash); COMP_WORDS=(" + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tpce; echo \"${COMPREPLY[*]}\"";
  write_text(directory / "script", script);
  EXPECT_EQ(std::system(("bash " + (directory / "script") + " >" + (directory / "offered")).c_str()), 0);
  return read_text(directory / "offered");
}

TEST(CompletionCommand, BashOffersCommandsOptionsAndChoices) {
  const TemporaryDirectory directory;
  EXPECT_EQ(offered(directory, "tpce ''"), "loss golden parity collapse train study report info completion\n");
  EXPECT_EQ(offered(directory, "tpce golden ''"), "make check update compare\n");
  EXPECT_EQ(offered(directory, "tpce loss --red"), "--reduction\n");
  EXPECT_EQ(offered(directory, "tpce loss --reduction ''"), "none sum mean\n");
  EXPECT_EQ(offered(directory, "tpce loss --method meg"), "megatron megatron_fused\n");
  EXPECT_EQ(offered(directory, "tpce loss --json --red"), "--reduction\n");  // --json takes nothing
  EXPECT_EQ(offered(directory, "tpce golden check g.txt --back"), "--backend\n");
  EXPECT_EQ(offered(directory, "tpce golden check g.txt --meth"), "\n");
  for (const char* command : {"loss", "golden make", "golden check", "golden update"}) {
    EXPECT_EQ(offered(directory, std::string("tpce ") + command + " --thr"), "--threads\n");
  }
  EXPECT_EQ(offered(directory, "tpce loss " + (directory / "scr")), directory / "script\n");
}

TEST(CompletionCommand, KnowsTwoShells) {
  const TemporaryDirectory directory;
  EXPECT_EQ(run(directory, {"completion", "zsh"}).out.rfind("#compdef tpce", 0), 0u);
  const Output output = run(directory, {"completion", "fish"});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_NE(output.err.find("bash or zsh"), std::string::npos);
}

}  // namespace
}  // namespace tpce::test
