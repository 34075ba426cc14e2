#include "golden/record.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace tpce::golden {
namespace {

using testing::expect_parts;
using testing::message_of;

const std::string kDigest(64, 'a');

Record read(const std::string& lines) { return read_record(Trajectory::parse(lines + "1 2.5 0.5\n", "g.txt")); }

std::string message_for(const std::string& lines) {
  return message_of([&] { read(lines); });
}

TEST(ReadRecord, TakesTheLinesApart) {
  const Record record =
      read("# tpce: version 0.1.0\n#tpce:  method  softplus tp=2 order=tree\n# tpce: input 1 sha256=" + kDigest +
           " rows=64 vocab=49152 dtype=bf16 later=x\n" +
           "# tpce: bits 1 loss=0x40200000 grad_norm=0x3f000000\n# tpce: later kind\n# step loss grad_norm\n");
  EXPECT_EQ(record.version, "0.1.0");
  EXPECT_EQ(record.method, (Method{"softplus", {{"tp", "2"}, {"order", "tree"}}}));
  EXPECT_EQ(record.method_line, 2u);
  EXPECT_EQ(record.inputs.at(1), (Input{kDigest, {}, 64, 49152, DType::kBFloat16}));
  EXPECT_EQ(record.bits.at(1), (MetricBits{{"loss", 0x40200000}, {"grad_norm", 0x3f000000}}));
}

TEST(ReadRecord, IsEmptyForOthersFiles) {
  const Record record = read("# config: x\n# step loss grad_norm\n");
  EXPECT_FALSE(record.version || record.method);
  EXPECT_TRUE(record.inputs.empty() && record.bits.empty());
}

TEST(ReadRecord, NamesWhatIsMalformed) {
  const std::string input = "# tpce: input 1 sha256=" + kDigest;
  expect_parts(message_for("\n# tpce: version\n"), {"g.txt", "line 2", "version"});
  expect_parts(message_for("# tpce: version 1\n# tpce: version 2\n"), {"line 2", "'version' stands twice"});
  expect_parts(message_for("# tpce: method\n"), {"method without a name"});
  expect_parts(message_for("# tpce: method a b\n"), {"'b' is not key=value"});
  expect_parts(message_for("# tpce: method a tp=2 tp=4\n"), {"line 1", "'tp' stands twice"});
  expect_parts(message_for("# tpce: input\n"), {"input without a step"});
  expect_parts(message_for("# tpce: input x sha256=1\n"), {"input without a step"});
  expect_parts(message_for("# tpce: input 1 sha256=12\n"), {"'12' is not a SHA-256"});
  expect_parts(message_for(input + " rows=1 vocab=2\n"), {"lacks dtype="});
  expect_parts(message_for(input + " rows=-1 vocab=2 dtype=bf16\n"), {"rows '-1'"});
  expect_parts(message_for(input + " rows=1 vocab=2 dtype=int\n"), {"dtype", "'int'"});
  expect_parts(message_for(input + " rows=1 rows=1 vocab=2 dtype=bf16\n"), {"'rows' stands twice"});
  expect_parts(message_for("# tpce: bits 1 loss=40200000\n"), {"loss '40200000'"});
  expect_parts(message_for("# tpce: bits 1 loss=0x4020000g\n"), {"loss '0x4020000g'"});
  expect_parts(message_for("# tpce: bits 1 loss=0x40200000 loss=0x40200000\n"), {"twice"});
}

TEST(Contradictions, NameBitsThatAreNotTheRows) {
  const auto found = [](const std::string& text) {
    const Trajectory trajectory = Trajectory::parse(text, "g.txt");
    return contradictions(trajectory, read_record(trajectory));
  };
  const auto bits = found("# tpce: bits 1 loss=0x40200001\n1 2.5 0.5\n");
  ASSERT_EQ(bits.size(), 1u);
  expect_parts(bits[0], {"step 1", "loss", "2.500000238418579", "0x40200001", "2.5"});
  const auto no_row = found("# tpce: bits 2 loss=0x40200000\n1 2.5 0.5\n");
  ASSERT_EQ(no_row.size(), 1u);
  expect_parts(no_row[0], {"step 2", "no row"});
  EXPECT_TRUE(found("# tpce: bits 1 other=0x40200001\n1 2.5 0.5\n").empty());
  EXPECT_TRUE(found("# tpce: bits 1 loss=0x7fc00000\n1 nan\n").empty());
}

TEST(RecordLines, AreReadBack) {
  Record record;
  record.version = "0.1.0";
  record.method = Method{"legacy", {{"tp", "4"}, {"order", "sequential"}}};
  record.inputs[1] = Input{kDigest, std::string(64, 'b'), 2, 3, DType::kFloat16};
  record.bits[1] = {{"loss", 0x40200000}, {"grad_norm", 0x3f000000}};
  std::string text;
  for (const RecordLine& line : record_lines(record)) text += line.text + "\n";
  EXPECT_EQ(text, "# tpce: version 0.1.0\n# tpce: method legacy tp=4 order=sequential\n# tpce: input 1 sha256=" +
                      kDigest + " labels_sha256=" + std::string(64, 'b') + " rows=2 vocab=3 dtype=fp16\n" +
                      "# tpce: bits 1 loss=0x40200000 grad_norm=0x3f000000\n");
  const Record back = read(text);
  EXPECT_EQ(back.version, record.version);
  EXPECT_EQ(back.method, record.method);
  EXPECT_EQ(back.inputs.at(1), record.inputs.at(1));
  EXPECT_EQ(back.bits, record.bits);
}

TEST(RecordLines, RefuseWordsThatWouldNotBeReadBack) {
  Record record;
  record.version = "0.1 beta";
  expect_parts(message_of([&] { record_lines(record); }), {"version", "'0.1 beta'"});
  record.version = "0.1";
  record.method = Method{"a\nb", {}};
  expect_parts(message_of([&] { record_lines(record); }), {"method", "'a\\nb'"});
  record.method = Method{"a", {{"tp", ""}}};
  expect_parts(message_of([&] { record_lines(record); }), {"tp"});
}

}  // namespace
}  // namespace tpce::golden
