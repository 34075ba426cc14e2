#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/studies/peers.h"

namespace tpce::sim {
namespace {

const std::string kStored = TPCE_TEST_DATA "/peers/margins_fp32.safetensors";

Json result_of(const std::string& key) {
  for (const Cell& cell : peer_cells(kStored)) {
    if (cell.key == key) return cell.compute({});
  }
  throw std::invalid_argument("no cell " + key);
}

TEST(PeerCells, TellTheOrderOfReleasedCode) {
  const Json torch = result_of("peer-torch");
  EXPECT_EQ(torch["rows"], 60);
  for (const Json& order : torch["orders"]) {
    const bool known = order["order"] == "lanes8";
    EXPECT_EQ(order["losses"] == 60, known) << order;
    EXPECT_EQ(order["target_grads"] == 60, known) << order;
    EXPECT_EQ(order["apart"] == 0.0, known) << order;
  }
  // As the rows stand: margins 15 and 16 are neighbours.
  EXPECT_NEAR(torch["first_lost"].get<double>(), 16.0, 0.01);
  EXPECT_NEAR(torch["last_kept"].get<double>(), 15.0, 0.01);
  // p_t - 1 is a multiple of 2^-24, so near margin 15 it errs by 22 %: 5 or 6 of them stand for 5.13.
  EXPECT_GT(torch["error_at_15"][0], 0.01);
}

TEST(PeerSection, SaysOfWhichTheOrderIsKnown) {
  std::vector<Json> results;
  for (const Cell& cell : peer_cells(kStored)) results.push_back(cell.compute({}));
  ASSERT_EQ(results.size(), 10u);
  EXPECT_TRUE(is_peer_result(results[0]));
  const Section section = peer_section(results);
  ASSERT_EQ(section.tables.size(), 2u);
  EXPECT_EQ(section.tables[1].rows.size(), 10u);
  EXPECT_EQ(section.tables[1].rows[0][2], "lanes8: 60, 60");
  EXPECT_NE(section.text.find("Not of: softplus_recompute_emulated"), std::string::npos) << section.text;
  // A line an order and peer, and the header.
  const std::string csv = peer_orders(results).text;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 10 * 9);
}

TEST(PeerCells, RefuseOtherFiles) {
  EXPECT_THROW(peer_cells("/nowhere.safetensors"), std::exception);
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "tpce_peers_study_test.safetensors";
  const auto refuses = [&](std::string header, std::size_t bytes, const std::string& why) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8);
    file << header << std::string(bytes, '\0');
    file.close();
    try {
      peer_cells(path.string());
      ADD_FAILURE() << "expected an error: " << why;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  const std::string logits = R"("logits":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]})";
  const std::string labels = R"("labels":{"dtype":"I64","shape":[1],"data_offsets":[8,16]})";
  const std::string margin = R"("margin":{"dtype":"F64","shape":[1],"data_offsets":[16,24]})";
  refuses("{" + logits + "," + labels + "," + margin + "}", 24, "holds the results of no peer");
  refuses(R"({"logits":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8,
          "logits: got shape [2], expected [T, V]");
  refuses("{" + logits + R"(,"labels":{"dtype":"F64","shape":[1],"data_offsets":[8,16]}})", 16,
          "labels: got 1 elements of fp64, expected 1 of int64");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tpce::sim
