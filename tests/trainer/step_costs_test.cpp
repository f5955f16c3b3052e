#include "trainer/resolve/step_costs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/trainer/tiny_layout.h"
#include "trainer/costs/hardware.h"
#include "trainer/costs/step_flops.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/run_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// The segments of all stages do for all microbatches on all ranks what the whole step does, however the work is split.
// That is so for dense and for mixed models.
TEST(StepCosts, SegmentsAddUpToTheStep) {
  for (const TinyLayout& layout :
       {TinyLayout{.name = "one rank", .layers = "de*2"},
        TinyLayout{.name = "stages", .layers = "d*2e*2", .degrees = {.pipeline = 4}},
        TinyLayout{
            .name = "all", .layers = "d*2e", .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
        TinyLayout{.name = "context", .layers = "d*2", .degrees = {.context = 2}}}) {
    const Config config = config_of(layout);
    const Mesh mesh(config.parallelism);
    const ProgramTables tables = program_tables(config, mesh, {});
    const auto flops = timed_flops(config, tables, find_hardware("cpu"));
    ASSERT_EQ(flops.size(), tables.segments.size());
    double sum = 0.0;
    for (const SegmentFlops& segment : flops) sum += segment.forward + segment.backward_input + segment.backward_weight;
    // Every microbatch of a pipeline passes each stage once, on as many ranks as hold a part of it.
    const double parts = config.parallelism.data() * config.parallelism.context * config.parallelism.tensor;
    EXPECT_NEAR(sum * static_cast<double>(config.microbatches()) * parts, step_flops(config), 1e-9 * step_flops(config))
        << layout.name;
  }
}

// A backward repeats parts of a MoE block's forward F with routed experts R. These are two thirds of R inside experts,
// F less a third of R where the rows are kept, all of F, or nothing.
TEST(StepCosts, CountWhatABackwardRepeats) {
  for (const Recompute recompute : all_values<Recompute>) {
    Config config = config_of({.layers = "e*2", .degrees = {.data_shard = 2, .expert = 2}});
    config.training.recompute = recompute;
    const ProgramTables tables = program_tables(config, Mesh(config.parallelism), {});
    double more = -step_flops(config);
    for (std::size_t s = 0; s < tables.segments.size(); ++s) {
      const SegmentFlops flops = timed_flops(config, tables, find_hardware("cpu"))[s];
      const double again = tables.segments[s].region ? flops.forward - flops.spared : 0.0;
      more += 2.0 * static_cast<double>(config.microbatches()) *
              (flops.forward + flops.backward_input + flops.backward_weight + again);
    }
    const TokenFlops block = block_token_flops(config.model, BlockKind::moe, config.training.sequence_length);
    const double all = block.total(), routed = block.routed_experts;
    const std::map<Recompute, double> expected = {{Recompute::none, 0.0},
                                                  {Recompute::selective, 0.0},
                                                  {Recompute::experts, routed * 2.0 / 3.0},
                                                  {Recompute::keep_dispatch, all - routed / 3.0},
                                                  {Recompute::full, all}};
    const double tokens =
        2.0 * static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
    EXPECT_NEAR(more, tokens * expected.at(recompute), 1e-9 * step_flops(config)) << name_of(recompute);
  }
}

// A rank whose experts get more than the mean multiplies more rows, and sends more back.
TEST(StepCosts, GrowWithTheLoadOfTheBusiestRank) {
  Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2, .expert = 2}});
  config.model.moe.num_experts_per_tok = 1;
  const Mesh mesh(config.parallelism);
  const ProgramTables even = program_tables(config, mesh, {});
  const auto before = timed_flops(config, even, find_hardware("cpu"));
  config.hardware.expert_load = 1.5;
  const ProgramTables uneven = program_tables(config, mesh, {});
  const auto after = timed_flops(config, uneven, find_hardware("cpu"));
  const double routed =
      block_token_flops(config.model, BlockKind::moe, config.training.sequence_length).routed_experts *
      static_cast<double>(config.microbatch_tokens());
  int grown = 0;
  for (std::size_t s = 0; s < even.segments.size(); ++s) {
    const bool experts = even.segments[s].part.kind == PartKind::experts;
    EXPECT_NEAR(after[s].forward - before[s].forward, experts ? 0.5 * routed : 0.0, 1e-6);
    for (std::size_t c = 0; c < even.segments[s].collectives.size(); ++c) {
      const ProgramCollective &one = even.segments[s].collectives[c], &other = uneven.segments[s].collectives[c];
      EXPECT_EQ(one.bytes, other.bytes);
      if (!one.is_bound) continue;
      EXPECT_EQ(2 * other.timed_bytes, 3 * one.timed_bytes);
      ++grown;
    }
  }
  EXPECT_EQ(grown, 2);  // rows sent back, forward and backward
}

// A shared expert of width w costs 6 H w operations a token in a forward, and as many in an input gradient. They run
// beside the rows on their way out. These are K rows of a token, of H float32 each, one half of them to the other rank.
// Rows on their way back find nothing beside them. Lanes of the CPU take turns.
TEST(StepCosts, ASharedExpertCoversTheWayOut) {
  Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2, .expert = 2}});
  const Mesh mesh(config.parallelism);
  const auto experts_of = [&](double bytes_per_second, std::string_view name) {
    const Hardware hardware{.name = name,
                            .flops_per_second_float32 = {2e9},
                            .reached = {0.5},
                            .ranks_per_node = {8},
                            .link_bytes_per_second = {bytes_per_second}};
    const ProgramTables tables = program_tables(config, mesh, {});
    const auto is_it = [](const ProgramSegment& segment) { return segment.part.kind == PartKind::experts; };
    const auto at = std::ranges::find_if(tables.segments, is_it) - tables.segments.begin();
    return modelled_costs(config, mesh, tables, hardware).segments.at(static_cast<std::size_t>(at));
  };
  const auto tokens = static_cast<double>(config.microbatch_tokens());
  const auto hidden = static_cast<double>(config.model.hidden_size);
  const double row_bytes = tokens * static_cast<double>(config.model.moe.num_experts_per_tok) * hidden * 4.0;
  // The way out takes a quarter of the wider shared expert, or four times as long.
  for (const std::int64_t width : {0, 32}) {
    config.model.moe.shared_expert_intermediate_size = width;
    const double shared = 1e-9 * tokens * 6.0 * hidden * static_cast<double>(width);
    for (const double out : {0.25 * 1e-9 * tokens * 6.0 * hidden * 32.0, 4e-9 * tokens * 6.0 * hidden * 32.0}) {
      SCOPED_TRACE(fmt::format("width {}, {} s", width, out));
      const double rate = 0.5 * row_bytes / out;
      const ComputeCost gpu = experts_of(rate, "of this test"), cpu = experts_of(rate, "cpu");
      const double covered = std::min(out, shared);
      EXPECT_NEAR(gpu.forward_out, out, 1e-12);
      EXPECT_NEAR(gpu.forward_covered, covered, 1e-12);
      EXPECT_NEAR(gpu.backward_covered, covered, 1e-12);
      EXPECT_NEAR(cpu.forward - gpu.forward, covered, 1e-12);
      EXPECT_NEAR(cpu.backward_input - gpu.backward_input, covered, 1e-12);
      EXPECT_EQ(cpu.backward_weight, gpu.backward_weight);
      EXPECT_EQ(cpu.forward_covered, 0.0);
      if (width == 0) {
        EXPECT_EQ(cpu, gpu);
      }
    }
  }
}

// A stage that only hands on, whatever its number is, among more blocks than stages and among fewer.
TEST(StepCosts, AStageWithoutBlocksCostsNothing) {
  for (const auto& [layers, layout] : {std::pair<std::string, std::string>{"d", "Ed||L"},
                                       {"d e d e d e", "Ede|de||deL"},
                                       {"d e d e d e", "Ede||dedeL"}}) {
    Config config = config_of({.layers = layers});
    config.pipeline.layout = layout;
    config.parallelism.pipeline = static_cast<int>(std::ranges::count(layout, '|')) + 1;
    const ProgramTables tables = program_tables(config, Mesh(config.parallelism), {});
    double sum = 0.0;
    int passages = 0;
    const auto flops = timed_flops(config, tables, find_hardware("cpu"));
    for (std::size_t s = 0; s < flops.size(); ++s) {
      const double all = flops[s].forward + flops[s].backward_input + flops[s].backward_weight;
      sum += all;
      if (tables.segments[s].part.kind != PartKind::passage) continue;
      EXPECT_EQ(all, 0.0) << tables.segments[s].name;
      ++passages;
    }
    EXPECT_GT(passages, 0) << layout;
    EXPECT_NEAR(sum * static_cast<double>(config.microbatches()), step_flops(config), 1e-9 * step_flops(config));
    EXPECT_GT(plan_run(config, find_hardware("h100")).time.seconds, 0.0);
    for (auto& [family, policy] : config.shard_by_family) policy.residency = {Residency::solved};
    config.memory_budget = std::int64_t{1} << 30;
    EXPECT_NO_THROW(ResolvedRun{config}) << layout;
  }
}

TEST(StepCosts, GradientsCostWhatTheyMultiply) {
  Config config = config_of({.layers = "de"});
  const ProgramTables tables = program_tables(config, Mesh(config.parallelism), {});
  const auto flops = timed_flops(config, tables, find_hardware("cpu"));
  const double tokens = static_cast<double>(config.microbatch_tokens());
  const ModelConfig& model = config.model;
  for (std::size_t s = 0; s < flops.size(); ++s) {
    const std::string& name = tables.segments[s].name;
    if (name == "embedding") {
      EXPECT_EQ(flops[s].forward + flops[s].backward_input + flops[s].backward_weight, 0.0);
    } else if (name.ends_with(".attention")) {
      // Two products with the scores, at half the sequence.
      const double scores = tokens * 2.0 * static_cast<double>(model.num_attention_heads * model.head_dim) *
                            static_cast<double>(config.training.sequence_length);
      EXPECT_NEAR(flops[s].forward - flops[s].backward_weight, scores, 1e-9 * flops[s].forward);
      EXPECT_NEAR(flops[s].backward_input - flops[s].forward, scores, 1e-9 * flops[s].forward);
    } else {
      EXPECT_GT(flops[s].forward, 0.0) << name;
      EXPECT_EQ(flops[s].forward, flops[s].backward_input) << name;
      EXPECT_EQ(flops[s].forward, flops[s].backward_weight) << name;
    }
    if (name == "blocks.0.mlp") {
      EXPECT_NEAR(flops[s].forward, tokens * 6.0 * static_cast<double>(model.hidden_size * model.intermediate_size),
                  1e-9 * flops[s].forward);
    }
  }
  config.training.frozen = {Family::head};
  const auto frozen = timed_flops(config, program_tables(config, Mesh(config.parallelism), {}), find_hardware("cpu"));
  EXPECT_EQ(frozen.back().backward_weight, 0.0);
  EXPECT_GT(frozen.back().backward_input, 0.0);
}

TEST(StepCosts, LinksAndRatesAreThoseOfTheHardware) {
  const Config config = config_of({.layers = "d*2", .degrees = {.pipeline = 2, .data_shard = 2}});
  const Mesh mesh(config.parallelism);
  const Hardware hardware{.flops_per_second_float32 = {2e9},
                          .reached = {0.5},
                          .ranks_per_node = {8},
                          .link_bytes_per_second = {1e9},
                          .link_latency = {1e-6}};
  const ProgramTables tables = program_tables(config, mesh, {});
  const ProgramCosts costs = modelled_costs(config, mesh, tables, hardware);
  const auto flops = timed_flops(config, tables, find_hardware("cpu"));
  for (std::size_t s = 0; s < flops.size(); ++s) {
    EXPECT_DOUBLE_EQ(costs.segments[s].forward, 1e-9 * flops[s].forward);
    EXPECT_DOUBLE_EQ(costs.segments[s].backward_weight, 1e-9 * flops[s].backward_weight);
  }
  for (std::size_t u = 0; u < tables.units.size(); ++u) {
    if (tables.units[u].replicated) continue;
    EXPECT_DOUBLE_EQ(costs.units[u].gather, 1e-6 + static_cast<double>(tables.units[u].gather_bytes) / 2 / 1e9);
    EXPECT_DOUBLE_EQ(costs.units[u].reduce, 1e-6 + static_cast<double>(tables.units[u].reduce_bytes) / 2 / 1e9);
  }
  EXPECT_DOUBLE_EQ(costs.transfers[0], 1e-6 + static_cast<double>(tables.stages[0].output_bytes) / 1e9);
}

}  // namespace
}  // namespace weft
