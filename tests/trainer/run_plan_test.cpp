#include "trainer/planning/run_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/costs/cost_table.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// A card of so many bytes, none reserved, in nodes of so many ranks.
Hardware card_of(double bytes, int ranks_per_node = 1 << 20) {
  Hardware hardware = find_hardware("cpu");
  hardware.memory = Figure{bytes, "of this test"};
  hardware.reserved_memory = {};
  hardware.ranks_per_node = {static_cast<double>(ranks_per_node), "of this test"};
  return hardware;
}

// Ranks alike are planned once, and together they are the world; each rank has the bytes of its class.
TEST(RankClasses, AreTheWorldAndAlike) {
  using enum UpdateRule;
  for (const auto& [degrees, rule] : {std::pair(Degrees{.pipeline = 2, .data_shard = 2, .tensor = 2}, adamw),
                                      {Degrees{.tensor = 4}, adamw},
                                      {Degrees{.data_replicate = 2, .context = 2}, adamw},
                                      {Degrees{.data_shard = 8}, muon},
                                      {Degrees{.pipeline = 2, .data_shard = 2, .tensor = 2}, muon}}) {
    Config config = config_of({.layers = "d e d e", .degrees = degrees});
    config.run.steps = 1;
    config.optimizer.rule = rule;
    const Mesh mesh(config.parallelism);
    const KeptRun run = run_kept(config);
    int ranks = 0;
    const std::vector<RankClass> classes = rank_classes(config, mesh);
    for (const RankClass& each : classes) ranks += each.ranks;
    EXPECT_EQ(ranks, mesh.world());
    std::map<std::string, int> measured;
    for (const BucketBytes& bytes : run.measured) ++measured[to_text(bytes)];
    std::map<std::string, int> planned;
    const RunPlan plan = plan_run(config, card_of(1e12));
    for (const RankPlan& rank : plan.ranks) planned[to_text(rank.peak)] += rank.ranks.ranks;
    EXPECT_EQ(planned, measured);
  }
}

// What the plan says of a step's communication is what all ranks together counted in it.
TEST(RunPlan, CountsWhatRanksCount) {
  Config config = config_of({.layers = "d e d e",
                             .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
                             .residency = "reshard_after_use"});
  config.run.steps = 1;
  const CommunicationCounters counted = run_kept(config).steps.back().communication;
  const RunPlan plan = plan_run(config, card_of(1e12));
  ASSERT_EQ(plan.communication.size(), counted.size());
  for (const GroupTraffic& traffic : plan.communication) {
    const CommunicationCount& count = counted.at({traffic.group, traffic.op});
    EXPECT_EQ(traffic.count, count.count) << traffic.group << " " << name_of(traffic.op);
    EXPECT_EQ(traffic.bytes, static_cast<double>(count.bytes)) << traffic.group << " " << name_of(traffic.op);
  }
}

// The node whose traffic is told against a count by hand, of 8 ranks in nodes of 4. Every gather goes around one group
// of 8, where one edge leaves a node. Otherwise there are two groups of 4 inside nodes and 4 pairs between them.
TEST(RunPlan, CountsWhatLeavesANode) {
  const auto egress = [](const Degrees& degrees) {
    const RunPlan plan = plan_run(config_of({.degrees = degrees}), card_of(1e12, 4));
    std::map<std::string, double> result;
    for (const GroupTraffic& traffic : plan.communication) {
      const double payload = static_cast<double>(traffic.payload);
      if (traffic.op == CollectiveOp::all_gather) {
        EXPECT_EQ(traffic.sent, payload * (degrees.data_shard - 1) / degrees.data_shard);
      }
      result[traffic.group + " " + std::string(name_of(traffic.op))] = traffic.node_egress / payload;
    }
    return result;
  };
  const auto whole = egress({.data_shard = 8});
  EXPECT_DOUBLE_EQ(whole.at("dp_shard all_gather"), 7.0 / 8.0);
  EXPECT_DOUBLE_EQ(whole.at("dp_shard reduce_scatter"), 7.0 / 8.0);
  const auto hybrid = egress({.data_replicate = 2, .data_shard = 4});
  EXPECT_DOUBLE_EQ(hybrid.at("dp_shard all_gather"), 0.0);
  EXPECT_DOUBLE_EQ(hybrid.at("dp_replicate all_reduce"), 4.0 * 2.0 / 2.0);
}

// Units are held along the list, and along the time, of the step that is simulated.
TEST(RunPlan, HasByteStepsAndByteSeconds) {
  const Config config = config_of({.layers = "d e d e",
                                   .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                                   .residency = "reshard_after_use"});
  const Hardware card = card_of(1e12);
  const RunPlan plan = plan_run(config, card);
  const ResolvedRun run(config);
  const Program program = step_program(run, {});
  const ProgramCosts costs = step_costs(run.config(), run.mesh(), program, card);
  const SimulatedStep step = simulate_step(program, costs, lane_channels(run.config()));
  ASSERT_EQ(plan.byte_seconds.size(), 2u);
  for (const RankPlan& rank : plan.ranks) {
    const auto at = static_cast<std::size_t>(rank.ranks.at.pp);
    EXPECT_EQ(rank.integral.byte_steps, live_integral(program, rank.ranks.at.pp).byte_steps);
    const ByteSeconds held = byte_seconds(step.memory[at]);
    EXPECT_DOUBLE_EQ(plan.byte_seconds[at][Bucket::unsharded_parameters], held[Bucket::unsharded_parameters]);
    EXPECT_DOUBLE_EQ(plan.byte_seconds[at][Bucket::unsharded_gradients], held[Bucket::unsharded_gradients]);
    EXPECT_DOUBLE_EQ(plan.byte_seconds[at][Bucket::communication], held[Bucket::communication]);
    EXPECT_GT(held[Bucket::unsharded_parameters], 0.0);
    EXPECT_GT(held[Bucket::unsharded_gradients], 0.0);
  }
}

// By the costs of a table a plan has the step and the bubble of the simulator. Runs with padded computation are within
// 3 % of its times (padded_run_test.cpp).
TEST(RunPlan, TakesTheTimesOfACostTable) {
  const TemporaryFolder folder;
  Config config = config_of({.degrees = {.pipeline = 2}});
  const CostTable table{.segments = {{"embedding", {2.0, 2.5, 3.0}},
                                     {"attention", {4.0, 5.5, 3.5}},
                                     {"mlp", {6.0, 7.5, 5.0}},
                                     {"head", {7.0, 8.0, 6.0}}},
                        .units = {{"*", {}}},
                        .messages = {{"*", 0.0}}};
  config.pipeline.costs = (folder / "costs.toml").string();
  std::ofstream(config.pipeline.costs) << to_toml(table);
  const RunPlan plan = plan_run(config, card_of(1e12));
  const Mesh mesh(config.parallelism);
  const Program program = step_program(ResolvedRun(config), {});
  const Simulation simulation =
      simulate(program, table_costs(table, program, group_sizes(mesh)), LaneChannels::serial());
  double idle = 0.0;
  for (int rank = 0; rank < 2; ++rank) idle += rank_times(program, simulation, rank, LaneChannels::serial()).bubble;
  EXPECT_DOUBLE_EQ(plan.time.seconds, simulation.seconds);
  EXPECT_DOUBLE_EQ(plan.time.bubble, idle / (2.0 * simulation.seconds));
  EXPECT_GT(plan.time.bubble, 0.05);
}

double seconds_of(const std::vector<StepPart>& parts, std::string_view what) {
  const auto found = std::ranges::find(parts, what, &StepPart::what);
  return found == parts.end() ? 0.0 : found->seconds;
}

// The time of expert exchanges against the traffic that the dry run counts. Each call over n ranks takes n - 1
// latencies, and (n - 1) / n of its bytes at the rate of the link. Ranks of the CPU do one thing at a time, so without
// a pipeline all exchanges of a rank are on the critical path.
TEST(RunPlan, SaysTheTimeOfExchanges) {
  const Config config =
      config_of({.layers = "d e d e", .degrees = {.data_shard = 2, .context = 2, .tensor = 2, .expert = 4}});
  const Hardware card = card_of(1e12);
  const RunPlan plan = plan_run(config, card);
  double expected = 0.0;
  for (const GroupTraffic& traffic : plan.communication) {
    if (traffic.group != "ep") continue;
    const double calls = static_cast<double>(traffic.count) / plan.world;
    const double bytes = traffic.bytes / plan.world;
    expected += calls * 3.0 * card.link_latency.value + 0.75 * bytes / card.link_bytes_per_second.value;
  }
  ASSERT_GT(expected, 0.0);
  EXPECT_NEAR(seconds_of(plan.exposed, "expert exchanges"), expected, 1e-9 * expected);
  EXPECT_NEAR(seconds_of(plan.path, "expert exchanges"), expected, 1e-9 * expected);
  double sum = 0.0;
  for (const StepPart& part : plan.path) sum += part.seconds;
  EXPECT_NEAR(sum, plan.time.seconds, 1e-9 * sum);
  for (const char* what : {"computation", "tensor collectives", "context collectives", "gathers", "reductions"}) {
    EXPECT_GT(seconds_of(plan.path, what), 0.0) << what;
  }
  EXPECT_EQ(seconds_of(plan.path, "messages"), 0.0);
  const RunPlan one = plan_run(config_of({.layers = "d e"}), card);
  EXPECT_TRUE(one.exposed.empty());
}

// On a GPU with slow links every second of a shared expert covers one of the exchange. It does so in the forward and in
// the input gradient of each block and microbatch, and again where a whole block is recomputed. The rest is exposed.
TEST(RunPlan, TellsExposedExchangesFromAll) {
  Hardware card = find_hardware("h100");
  card.link_bytes_per_second = Figure{1e6, "of this test"};
  for (const Recompute recompute : {Recompute::none, Recompute::full, Recompute::keep_dispatch}) {
    Config config = config_of({.layers = "d e d e", .degrees = {.data_shard = 2, .expert = 2}});
    config.training.recompute = recompute;
    const RunPlan bare = plan_run(config, card);
    EXPECT_EQ(seconds_of(bare.exposed, "expert exchanges"), seconds_of(bare.inside, "expert exchanges"));
    config.model.moe.shared_expert_intermediate_size = 32;
    const RunPlan plan = plan_run(config, card);
    const double shared = static_cast<double>(config.microbatch_tokens() * 6 * config.model.hidden_size * 32) /
                          (card.reached.value * card.flops_per_second_float32.value);
    const double times = (recompute == Recompute::full ? 3.0 : 2.0) * 2.0 * static_cast<double>(config.microbatches());
    const double all = seconds_of(plan.inside, "expert exchanges");
    EXPECT_EQ(all, seconds_of(bare.inside, "expert exchanges"));
    EXPECT_NEAR(seconds_of(plan.exposed, "expert exchanges"), all - times * shared, 1e-9 * all);
  }
}

// Traffic at the same time shares the adapters of a node: the wait counts as part of the exchanges.
TEST(RunPlan, ExchangesOnThePathIncludeTheWaitForAdapters) {
  const Config config = read_config(WEFT_SOURCE_DIR "/configs/plan_1t_moe.toml").config;
  const RunPlan plan = plan_run(config, find_hardware("h100"), PlanRoutings::even);
  double sum = 0.0;
  for (const StepPart& part : plan.path) sum += part.seconds;
  EXPECT_NEAR(sum, plan.time.seconds, 1e-9 * sum);
  EXPECT_GT(seconds_of(plan.path, "expert exchanges"), 0.25 * plan.time.seconds);
}

TEST(Verdict, RefusesAbove95PercentAndNamesWhatDecides) {
  BucketBytes peak;
  peak[Bucket::activations] = 700;
  peak[Bucket::optimizer_state] = 249;
  Hardware card = card_of(1000);
  EXPECT_EQ(judge(card, peak).fit, Fit::fits);
  EXPECT_EQ(judge(card, peak).headroom(), 51);
  EXPECT_NE(judge(card, peak).text().find(" left, less than 10 %; "), std::string::npos) << judge(card, peak).text();
  peak[Bucket::optimizer_state] = 200;
  EXPECT_FALSE(judge(card, peak).leaves_little_room());
  EXPECT_EQ(judge(card, peak).text().find("less than"), std::string::npos) << judge(card, peak).text();
  peak[Bucket::optimizer_state] = 201;
  EXPECT_TRUE(judge(card, peak).leaves_little_room());
  EXPECT_EQ(judge(card, peak).deciding, Bucket::activations);
  peak[Bucket::optimizer_state] = 251;
  EXPECT_EQ(judge(card, peak).fit, Fit::tight);
  EXPECT_FALSE(judge(card, peak).fits());
  EXPECT_FALSE(judge(card, peak).leaves_little_room()) << "it is refused";
  peak[Bucket::optimizer_state] = 301;
  EXPECT_EQ(judge(card, peak).fit, Fit::exceeds);
  peak[Bucket::optimizer_state] = 240;
  card.reserved_memory.value = 100;
  EXPECT_EQ(judge(card, peak).fit, Fit::exceeds) << "what is reserved counts";
  card.memory.reset();
  EXPECT_EQ(judge(card, peak).fit, Fit::unknown);
}

TEST(Verdict, RefusesAHostThatIsTooSmall) {
  const BucketBytes peak;
  Hardware card = card_of(1000);
  EXPECT_TRUE(judge(card, peak, 1'000'000).fits()) << "nothing is known of the host";
  card.host_memory = Figure{1000};
  EXPECT_TRUE(judge(card, peak, 950).fits());
  const Verdict verdict = judge(card, peak, 951);
  EXPECT_EQ(verdict.fit, Fit::exceeds);
  EXPECT_NE(verdict.text().find("951 B of host memory are more than 95 % of a card's 1000 B"), std::string::npos)
      << verdict.text();
  card.memory.reset();
  EXPECT_FALSE(judge(card, peak, 951).fits());
}

// Twice the bytes that a rank keeps there are enough, and the bytes themselves leave no room.
TEST(Verdict, CountsWhatPlansKeepInHostMemory) {
  Config config = config_of({.layers = "d*8", .degrees = {.data_shard = 2}});
  config.hardware.name = "h100";
  config.training.offload = config.state_offload = 1.0;
  const RunPlan plan = plan_run(config, hardware_of(config));
  EXPECT_EQ(plan.verdict.host_needed, plan.host.total());
  EXPECT_EQ(outline_run(config, hardware_of(config)).verdict, plan.verdict);
  for (const auto& [room, fits] : {std::pair(2 * plan.host.total(), true), {plan.host.total(), false}}) {
    config.hardware.host_memory = room;
    EXPECT_EQ(plan_run(config, hardware_of(config)).verdict.fits(), fits);
    EXPECT_EQ(least_need(config, hardware_of(config)).fits(), fits);
  }
}

TEST(RunPlan, RefusesAWorldThatDoesNotFillNodes) {
  try {
    plan_run(config_of({.degrees = {.data_shard = 8}}), card_of(1e12, 3));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("8 ranks do not fill nodes of 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("2 or 4"), std::string::npos) << error.what();
  }
}

// A trillion parameters on 4,096 ranks: no rank is started, and the 16 pipeline positions are all that is planned.
TEST(RunPlan, PlansATrillionParameters) {
  const Config config = read_config(WEFT_SOURCE_DIR "/configs/plan_1t_moe.toml").config;
  const RunPlan plan = plan_run(config, find_hardware("h100"));
  EXPECT_EQ(plan.world, 4096);
  EXPECT_EQ(plan.nodes, 512);
  EXPECT_GT(plan.parameters.total, 1'000'000'000'000);
  ASSERT_EQ(plan.ranks.size(), 16u);
  for (const RankPlan& rank : plan.ranks) EXPECT_EQ(rank.ranks.ranks, 256);
  // Weights, gradients and two moments in float32. All ranks together hold 16 bytes of them a parameter, but for
  // padding (less than a row a shard), norms and routers. Tensor ranks have copies of norms, all ranks of a stage of
  // routers. The routers' weights are in a bucket of their own, and three times as much goes off the sum.
  double state = 0.0;
  for (const RankPlan& rank : plan.ranks) {
    for (const Bucket bucket : {Bucket::sharded_parameters, Bucket::sharded_gradients, Bucket::optimizer_state}) {
      state += static_cast<double>(rank.peak[bucket]) * rank.ranks.ranks;
    }
    state -= 3.0 * static_cast<double>(rank.peak[Bucket::replicated_parameters]) * rank.ranks.ranks;
  }
  EXPECT_NEAR(state / (16.0 * static_cast<double>(plan.parameters.total)), 1.0, 1e-3);
}

}  // namespace
}  // namespace weft
