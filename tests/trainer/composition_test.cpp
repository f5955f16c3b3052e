// The order in which parallelisms are composed, seen from the owners. Tensor ranks split parameters, stages take
// blocks, and shard units cut the rows of a tensor rank's part. Experts are dealt whole, and their group shards each
// rank's share.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "tests/trainer/tiny_layout.h"
#include "trainer/rank/verify_step.h"

namespace weft {
namespace {

// Rank p x 4 + s x 2 + t stands on stage p and has shard s and tensor part t. Of the four experts, ranks of even number
// have the first two and those of odd number the others.
TEST(Composition, IsTensorThenStagesThenShardsThenExperts) {
  Config config = config_of({.layers = "d e d e",
                             .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
                             .stages = "Ed|edeL"});
  config.model.vocab_size = 256;
  std::map<int, std::pair<std::int64_t, std::int64_t>> embedding;  // first row and rows, by rank
  std::map<std::string, int> expert_rank;                          // of each matrix
  for (const OwnedRange& range : owner_table(config, Mesh(config.parallelism))) {
    SCOPED_TRACE(range.parameter);
    int block = 0;
    const bool in_block = std::sscanf(range.parameter.c_str(), "blocks.%d.", &block) == 1;
    if (in_block) {
      EXPECT_EQ(range.rank / 4, block == 0 ? 0 : 1);
    }
    if (range.parameter == "embedding.weight") embedding[range.rank] = {range.row_begin, range.rows};
    const bool expert = range.parameter.find(".experts.") != std::string::npos && range.columns > 1;
    if (expert) {
      EXPECT_EQ(range.rows, config.model.moe.moe_intermediate_size) << "a whole expert is one rank's here";
      EXPECT_TRUE(expert_rank.emplace(range.parameter, range.rank).second);
    } else if (range.parameter.ends_with(".gate_proj.weight")) {
      const std::int64_t part = config.model.intermediate_size / 2;
      EXPECT_EQ(range.row_begin / part, range.rank % 2) << "of the tensor rank's part";
      EXPECT_LE(range.row_begin % part + range.rows, part);
    }
  }
  // 128 rows a tensor rank, and of these 64 a shard. Shards first would give rank 1 rows 64 to 127.
  using Rows = std::map<int, std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(embedding, (Rows{{0, {0, 64}}, {1, {128, 64}}, {2, {64, 64}}, {3, {192, 64}}}));
  // Two experts a rank of the expert group, and of these one a shard. Shards first would give rank 1 expert 1.
  ASSERT_EQ(expert_rank.size(), 2u * 4 * 3);
  for (const int block : {1, 3}) {
    for (const auto& [expert, rank] : std::map<int, int>{{0, 4}, {1, 6}, {2, 5}, {3, 7}}) {
      for (const char* which : {"gate_proj", "up_proj", "down_proj"}) {
        EXPECT_EQ(expert_rank.at(fmt::format("blocks.{}.experts.{}.{}.weight", block, expert, which)), rank);
      }
    }
  }
}

}  // namespace
}  // namespace weft
