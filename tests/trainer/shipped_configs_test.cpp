// Every configuration in configs/ is one a newcomer may start from: it is read without a fault and its step compiles.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <initializer_list>

#include "parallel/runtime/random.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/costs/topology.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/run_plan.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

TEST(ShippedConfigs, AreReadAndCompileForEveryStage) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(WEFT_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++found;
    const Config config = read_config(entry.path()).config;
    const Mesh mesh(config.parallelism);
    // step_program checks what it compiled.
    const Program program = step_program(ResolvedRun(config), mesh.coordinates(0));
    ASSERT_EQ(program.ranks.size(), static_cast<std::size_t>(config.parallelism.pipeline)) << entry.path();
    for (const auto& actions : program.ranks) EXPECT_GT(actions.size(), 0u) << entry.path();
  }
  EXPECT_GE(found, 3u);
}

// The traffic that leaves a node, counted by communicators and not by the tables that are simulated. It is that of the
// ranks of one stage, where a node has no others. Islands and ties, whose groups are not those of the mesh alone, are
// left out.
double least_seconds(const Mesh& mesh, const RankPlan& rank, const Hardware& hardware) {
  double bytes = 0.0;
  for (const auto& [key, count] : rank.communication) {
    for (const Group group : all_groups) {
      if (name_of(group) != key.group || group == Group::dp_island || group == Group::edp_island) continue;
      bytes +=
          node_egress_bytes(group_links(mesh, group, hardware.node_ranks()), key.op, static_cast<double>(count.bytes));
    }
  }
  return bytes / hardware.node_bytes_per_second.value;
}

void expect_no_time_below_its_bound(const Config& config, const Hardware& hardware, const std::string& what) {
  const Mesh mesh(config.parallelism);
  const RunPlan plan = plan_run(config, hardware);
  // Sums in another order.
  EXPECT_GE(plan.time.seconds, plan.time.adapters * (1 - 1e-9)) << what;
  EXPECT_NEAR(plan.node_egress_bytes, plan.time.adapters * hardware.node_bytes_per_second.value,
              1e-9 * plan.node_egress_bytes);
  if (mesh.degrees().stage_ranks() % hardware.node_ranks() != 0) return;
  for (const RankPlan& rank : plan.ranks) {
    // Totals of a step, a few bytes, are summed behind it.
    EXPECT_GE(plan.time.seconds, (1 - 1e-4) * least_seconds(mesh, rank, hardware))
        << what << " rank " << rank.ranks.first;
  }
}

Hardware in_nodes(Hardware hardware, int ranks) {
  hardware.ranks_per_node.value = ranks;
  return hardware;
}

TEST(ShippedConfigs, HaveNoTimeBelowItsBound) {
  int crossing = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(WEFT_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    const Config config = read_config(entry.path()).config;
    if (config.pipeline.has_cost_table()) continue;
    for (const int node : {1, 2, 8}) {
      const Hardware hardware = in_nodes(find_hardware("h100"), node);
      if (config.parallelism.world() <= node || config.parallelism.world() % node != 0) continue;
      if (config.parallelism.world() > 1024 && node != 8) continue;
      ++crossing;
      expect_no_time_below_its_bound(config, hardware, fmt::format("{} in nodes of {}", entry.path().string(), node));
    }
  }
  EXPECT_GE(crossing, 8);
}

TEST(RandomConfigs, HaveNoTimeBelowItsBound) {
  RandomStream random(11, "layouts on nodes");
  std::uint64_t next = 0;
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + random.bits(next++) % values.size());
  };
  for (int drawn = 0; drawn < 40; ++drawn) {
    TinyLayout layout{.layers = one_of({0, 1}) ? "d e d e" : "d*4"};
    layout.degrees = {.pipeline = one_of({1, 2, 4}),
                      .data_replicate = one_of({1, 2}),
                      .data_shard = one_of({1, 2, 4}),
                      .context = one_of({1, 2}),
                      .tensor = one_of({1, 2})};
    layout.degrees.expert = one_of({1, 2});
    const int stage_ranks = layout.degrees.stage_ranks();
    if (stage_ranks % 2 != 0 || stage_ranks % layout.degrees.expert != 0) continue;
    layout.strategy = one_of({0, 1}) ? ShardStrategy::full_shard : ShardStrategy::shard_grad_op;
    layout.reduction = one_of({0, 1}) ? "each_microbatch" : "last_microbatch";
    layout.residency = one_of({0, 1}) ? "reshard_after_use" : "stage";
    layout.lookahead = one_of({0, 1, 2});
    layout.tied = one_of({0, 1}) == 1;
    Hardware hardware = in_nodes(find_hardware("h100"), 2);
    // From adapters that are never full to such that nothing else takes time.
    hardware.node_bytes_per_second.value = 1e6 * std::pow(100.0, one_of({0, 1, 2}));
    hardware.node_latency.value = 0.0;
    expect_no_time_below_its_bound(config_of(layout), hardware, fmt::format("drawn {}", drawn));
  }
}

}  // namespace
}  // namespace weft
