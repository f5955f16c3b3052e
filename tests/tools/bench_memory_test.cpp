// `weft bench memory` on a model of a few thousand parameters. Every strategy runs, its static memory is as predicted,
// and the strategies differ from each other as they should.
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/program.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;
using BenchMemory = ProgramTest;

// All sizes are powers of two and a unit has 4 times as many rows as ranks. So shards have no padding but what a norm
// needs. Dense blocks: what is sharded is everything.
constexpr const char* dense_run = R"([model]
layers = "d*2"
vocab_size = 256
hidden_size = 32
intermediate_size = 128
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 8
qk_norm = false
[parallelism]
data_shard = 4
[precision]
compute = "bfloat16"
[training]
sequence_length = 4
global_batch_size = 8
[data]
train = ["text.txt"]
)";

TEST_F(BenchMemory, StrategiesHoldWhatTheyShould) {
  put("run.toml", dense_run);
  put("text.txt", std::string(100, 'w'));
  const auto result = weft("bench memory --config run.toml --steps 1 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  std::map<std::string, std::map<std::string, std::int64_t>> measured;
  const SortedJson document = SortedJson::parse(result.output);
  for (const SortedJson& row : document["strategies"]) {
    SCOPED_TRACE(row.dump());
    std::int64_t predicted_total = 0, measured_total = 0;
    for (const auto& [name, bytes] : row["buckets"].items()) {
      predicted_total += bytes["predicted"].get<std::int64_t>();
      measured_total += bytes["measured"].get<std::int64_t>();
      measured[row["strategy"]][name] = bytes["measured"];
      if (bytes["static"]) {
        EXPECT_EQ(bytes["predicted"], bytes["measured"]) << name;
      }
    }
    EXPECT_EQ(row["predicted_bytes"], predicted_total);
    EXPECT_EQ(row["measured_bytes"], measured_total);
    EXPECT_NEAR(row["difference_percent"].get<double>(),
                100.0 * static_cast<double>(measured_total - predicted_total) / static_cast<double>(predicted_total),
                1e-9);
  }
  ASSERT_EQ(measured.size(), 13u);
  const auto bytes = [&](const char* strategy, const char* bucket) { return measured.at(strategy).at(bucket); };
  // Rows of 32: the embedding has 256, a block 4 x 32 + 3 x 128 + 2, the head 256 + 1. Over 4 ranks a block has 516
  // rows with padding, over 2 514, over 1 514; the head 260, 258, 257.
  const std::int64_t over4 = (256 + 2 * 516 + 260) * 32, over2 = (256 + 2 * 514 + 258) * 32,
                     whole = (256 + 2 * 514 + 257) * 32;
  for (const char* strategy : {"full_shard, reshard_after_use", "full_shard, reshard_after_use, each_microbatch",
                               "full_shard, reshard_after_use, accumulation sharded", "full_shard, keep_after_forward",
                               "full_shard, keep_after_backward", "full_shard, island of 2", "full_shard, step",
                               "shard_grad_op", "optimizer"}) {
    EXPECT_EQ(bytes(strategy, "sharded_parameters"), over4) << strategy;  // 4 bytes each, a quarter
    EXPECT_EQ(bytes(strategy, "sharded_gradients"), over4) << strategy;
    EXPECT_EQ(bytes(strategy, "optimizer_state"), 2 * over4) << strategy;
  }
  for (const char* strategy : {"hybrid 2 x 2, full_shard, reshard_after_use", "hybrid 2 x 2, shard_grad_op"}) {
    EXPECT_EQ(bytes(strategy, "sharded_parameters"), 2 * over2) << strategy;
    EXPECT_EQ(bytes(strategy, "optimizer_state"), 4 * over2) << strategy;
  }
  for (const char* strategy : {"no_shard", "no_shard, each_microbatch"}) {
    EXPECT_EQ(bytes(strategy, "sharded_parameters"), 4 * whole) << strategy;
    EXPECT_EQ(bytes(strategy, "optimizer_state"), 8 * whole) << strategy;
  }
  // bfloat16 copies. Gathered once a step all of them are there (but the embedding, which backward does not read).
  // Dropped after each use the two largest neighbours are.
  EXPECT_EQ(bytes("full_shard, reshard_after_use", "unsharded_parameters"), 2 * 2 * 516 * 32);
  EXPECT_EQ(bytes("full_shard, step", "unsharded_parameters"), bytes("optimizer", "unsharded_parameters"));
  EXPECT_GE(bytes("full_shard, step", "unsharded_parameters"), 2 * (2 * 516 + 260) * 32);
  EXPECT_LE(bytes("full_shard, step", "unsharded_parameters"), 2 * over4);
  EXPECT_GT(bytes("full_shard, island of 2", "unsharded_parameters"),
            bytes("full_shard, reshard_after_use", "unsharded_parameters"));
  // Full gradients of all units wait for the last microbatch, or of the two that a reduction has not finished.
  EXPECT_EQ(bytes("optimizer", "unsharded_gradients"), 4 * over4);
  EXPECT_LE(bytes("shard_grad_op", "unsharded_gradients"), 4 * 2 * 516 * 32);
  EXPECT_EQ(bytes("no_shard", "unsharded_gradients"), 0);
}

TEST_F(BenchMemory, PrintsATableAndRefusesWhatItDoesNotKnow) {
  put("run.toml", dense_run);
  put("text.txt", std::string(100, 'w'));
  const auto markdown = weft("bench memory run.toml --steps 1 --markdown");
  ASSERT_EQ(markdown.exit_code, 0) << markdown.messages;
  EXPECT_NE(markdown.output.find("\n| strategy | sharded parameters | "), std::string::npos) << markdown.output;
  EXPECT_NE(markdown.output.find("\n| no_shard | "), std::string::npos) << markdown.output;
  for (const char* arguments :
       {"bench", "bench memory gone.toml", "bench memory run.toml --steps 0", "bench memory run.toml --json --markdown",
        "bench memory run.toml --parallelism.data_shard=3", "bench memory run.toml --fast", "bench window run.toml"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_NE(result.messages, "") << arguments;
  }
}

}  // namespace
}  // namespace weft
