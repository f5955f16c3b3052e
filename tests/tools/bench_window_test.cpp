// `weft bench window` against sizes and counts derived from the shape of the model, and the document that shows it.
//
// 16 ranks shard whole rows of 4096 elements of two bytes. A block has 4 x 4096 rows of attention, 3 x 11008 of the
// MLP and two norms of one row each. Embedding and head have 32000 each, and there is a final norm. Every unit is
// padded to a multiple of 16 rows.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/tools/program.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;
using BenchWindow = ProgramTest;

constexpr std::int64_t unit_bytes(std::int64_t rows) {
  return (rows + 15) / 16 * 16 * 4096 * 2;
}
constexpr std::int64_t attention_rows = 4 * 4096 + 1, mlp_rows = 3 * 11008 + 1, root_rows = 2 * 32000 + 1;
constexpr std::int64_t block_rows = attention_rows + mlp_rows;
constexpr std::int64_t block = unit_bytes(block_rows), root = unit_bytes(root_rows);

struct Row {
  std::string wrap, residency;
  int lookahead = 0;
  std::int64_t peak = 0, held = 0, gathered = 0;
  int gathers = 0, island_gathers = 0, reductions = 0;
};

// With parameters dropped after each use every unit is gathered for forward and for backward. A lookahead of n has n
// units there beside the one in use, and the root stays. Where forward turns into backward the last n units would be
// gathered again as soon as they are dropped, and so stay. An island of 8 keeps an eighth of every other block.
std::vector<Row> expected_rows() {
  const std::int64_t all = root + 32 * block;
  const std::int64_t two = unit_bytes(2 * block_rows), four = unit_bytes(4 * block_rows);
  const std::int64_t attention = unit_bytes(attention_rows), mlp = unit_bytes(mlp_rows);
  const std::int64_t everything = unit_bytes(32 * block_rows + root_rows);
  return {
      {"root", "step", 1, everything, everything, everything, 1, 0, 1},
      {"block", "reshard_after_use", 0, root + block, root, root + 64 * block, 65, 0, 33},
      {"block", "reshard_after_use", 1, root + 2 * block, root + block, root + 63 * block, 64, 0, 33},
      {"block", "reshard_after_use", 2, root + 3 * block, root + 2 * block, root + 62 * block, 63, 0, 33},
      {"block", "keep_after_forward", 1, all, all, all, 33, 0, 33},
      // The part of the block in use exists while it is gathered, not while it is used. At the peak the first two
      // blocks of the backward are there.
      {"block", "island 8", 1, root + 2 * block + 31 * block / 8, root + block + 31 * block / 8, root + 63 * block, 64,
       31, 33},
      {"blocks 2", "reshard_after_use", 1, root + 2 * two, root + two, root + 31 * two, 32, 0, 17},
      {"blocks 4", "reshard_after_use", 1, root + 2 * four, root + four, root + 15 * four, 16, 0, 9},
      {"half_block", "reshard_after_use", 1, root + attention + mlp, root + mlp, root + 64 * attention + 63 * mlp, 128,
       0, 65},
  };
}

TEST_F(BenchWindow, FollowsFromTheShape) {
  const auto result = weft("bench window --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const SortedJson rows = SortedJson::parse(result.output)["wrapping"];
  const auto expected = expected_rows();
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const SortedJson& row = rows[i];
    const Row& want = expected[i];
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row["wrap"], want.wrap);
    EXPECT_EQ(row["residency"], want.residency);
    EXPECT_EQ(row["lookahead"], want.lookahead);
    EXPECT_EQ(row["peak_bytes"], want.peak);
    EXPECT_EQ(row["held_bytes"], want.held);
    EXPECT_EQ(row["gathered_bytes"], want.gathered);
    EXPECT_EQ(row["gathers"], want.gathers);
    EXPECT_EQ(row["island_gathers"], want.island_gathers);
    EXPECT_EQ(row["reductions"], want.reductions);
  }
}

// With m microbatches a block is gathered 2 m times a step when it is dropped after each use. It is gathered m + 1
// times when a backward keeps it, m times when a forward does, and once when it stays. Two uses in a row need one
// gather. The second of four stages runs F F (F B)^(m-2) B B. So the last of its 8 blocks goes from a forward into a
// backward m - 2 times. The first goes from a backward into a forward m - 3 times. Where all others stay meanwhile,
// the second of a turn is the next that would be gathered when it is dropped, and so stays too. That happens m - 3
// times behind a backward that keeps its parameters, and m - 2 times behind a forward that does.
TEST_F(BenchWindow, APipelinedBlockIsGatheredAsOftenAsItsResidencySays) {
  const SortedJson rows = SortedJson::parse(weft("bench window --json").output)["pipeline"];
  ASSERT_EQ(rows.size(), 8u);
  for (const SortedJson& row : rows) {
    SCOPED_TRACE(row.dump());
    const int m = row["microbatches"];
    const std::string residency = row["residency"];
    const bool each = residency == "reshard_after_use", backward = residency == "keep_after_backward",
               forward = residency == "keep_after_forward";
    const int of_a_block = each ? 2 * m : backward ? m + 1 : forward ? m : 1;
    EXPECT_EQ(row["gathers_of_a_unit"], of_a_block);
    EXPECT_EQ(row["reductions"], 8);
    EXPECT_EQ(row["gathered_bytes"], row["gathers"].get<int>() * block);
    // A microbatch's parameters are there between its forward and its backward where a forward keeps them.
    EXPECT_EQ(row["held_bytes"], forward || residency == "step" ? 8 * block : 0);
    EXPECT_EQ(row["peak_bytes"], each ? 2 * block : 8 * block);
    const int spared = residency == "step" ? 0 : m - 2 + m - 3;
    EXPECT_EQ(row["gathers"], 8 * of_a_block - spared);
  }
}

TEST_F(BenchWindow, TheDocumentShowsWhatTheCommandPrints) {
  const auto result = weft("bench window --markdown");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  std::ifstream file(WEFT_SOURCE_DIR "/docs/sharding.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  const std::string begin = "<!-- build/weft bench window --markdown -->\n\n", end = "\n<!-- end -->\n";
  const std::size_t first = document.find(begin);
  ASSERT_NE(first, std::string::npos);
  const std::size_t last = document.find(end, first);
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(document.substr(first + begin.size(), last - first - begin.size()), result.output)
      << "tools/docs-tables.sh writes the tables anew";
}

}  // namespace
}  // namespace weft
