// Dispatches of tokens in whole runs: what passes between nodes is what is planned, and less where a copy is enough.
#include <gtest/gtest.h>

#include "layers/token_relay.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// Experts on 8 ranks of four nodes; a token chooses 4 of 16 experts.
Config spread_over_nodes(ExpertDispatch dispatch) {
  Config config = config_of(
      {.layers = "d e", .degrees = {.data_shard = 8, .expert = 8, .expert_dispatch = dispatch, .expert_nodes = 4}});
  config.model.moe.num_experts = 16;
  config.model.moe.num_experts_per_tok = 4;
  config.run.steps = 1;
  return config;
}

std::int64_t exchanged_bytes(const KeptRun& run, Group group) {
  const CommunicationKey key{std::string(name_of(group)), CollectiveOp::all_to_all};
  const CommunicationCounters& counted = run.steps.front().communication;
  const auto found = counted.find(key);
  return found == counted.end() ? 0 : found->second.bytes;
}

// The relay moves copies out and sums back, twice; with every copy 4 x 4 bytes of indices and as many of weights, whose
// gradients come back. An untrained router's choices are not even: within a tenth.
TEST(ExpertDispatchRun, SendsBetweenNodesACopyForEachThatATokenReaches) {
  const Config config = spread_over_nodes(ExpertDispatch::hierarchical);
  const KeptRun straight = run_kept(spread_over_nodes(ExpertDispatch::all_to_all)), relayed = run_kept(config);
  EXPECT_EQ(exchanged_bytes(straight, Group::ep_relay), 0);
  EXPECT_EQ(exchanged_bytes(relayed, Group::ep), 0);
  // Choices are exchanged inside nodes instead.
  EXPECT_EQ(exchanged_bytes(relayed, Group::ep_inner), exchanged_bytes(straight, Group::ep));

  const std::int64_t tokens = config.training.global_batch_size * config.training.sequence_length;
  const std::int64_t row = config.model.hidden_size * size_of(config.precision.compute), numbers = 4 * 4;
  const double copies = copies_of_token(config.model.moe, 4).mean;
  EXPECT_NEAR(copies, 2.912, 0.001);  // of four parts of four experts: 4 (1 - 12 * 11 * 10 * 9 / (16 * 15 * 14 * 13))
  const double planned = static_cast<double>(tokens * (4 * row + 3 * numbers)) * copies;
  EXPECT_NEAR(static_cast<double>(exchanged_bytes(relayed, Group::ep_relay)) / planned, 1.0, 0.1);
}

}  // namespace
}  // namespace weft
