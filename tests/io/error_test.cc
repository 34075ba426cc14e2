#include "io/error.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

TEST(Quote, EscapesWhatWouldBreakALine) {
  EXPECT_EQ(quote("a b"), "'a b'");
  EXPECT_EQ(quote(std::string_view("a\n\r\t\0\x7f\x93", 7)), "'a\\n\\r\\t\\x00\\x7f\\x93'");
}

TEST(ShellWord, QuotesWhereAShellWouldSplitOrExpand) {
  EXPECT_EQ(shell_word("a/b-1.txt"), "a/b-1.txt");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(Quote, CutsLongText) { EXPECT_EQ(quote(std::string(100, 'x'), 5), "'xxxxx...'"); }

TEST(Printable, KeepsUtf8NamesAndEscapesControls) {
  EXPECT_EQ(printable("naïve.npy"), "naïve.npy");
  EXPECT_EQ(printable("a\nb"), "a\\nb");
  EXPECT_EQ(printable(""), "''");
}

TEST(Fail, NamesTheFileOnOneLine) {
  EXPECT_EQ(testing::message_of([] { fail("odd\nname", "row {}: {}", 3, "bad"); }), "odd\\nname: row 3: bad");
}

TEST(ShapeText, IsAList) {
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{64, 49152}), "[64, 49152]");
  EXPECT_EQ(shape_text({}), "[]");
}

}  // namespace
}  // namespace tpce::io
