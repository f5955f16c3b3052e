// Residency "auto" as it is run. Under every order and budget a run learns what any other residency learns, and holds
// no more than its budget.
#include "trainer/resolve/solved_timing.h"
#include "tests/parallel/peak_at_any_times.h"
#include "tests/parallel/program_grid.h"

#include <gtest/gtest.h>

#include <mutex>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/pipeline/timing/problem.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

struct Order {
  std::string schedule;
  int pipeline = 2, chunks = 1;

  std::string name() const { return fmt::format("{}_pp{}_v{}", schedule, pipeline, chunks); }
};
std::vector<Order> orders_of_all_schedules() {
  std::vector<Order> orders = {{"1f1b", 1}, {"1f1b", 4}, {"interleaved", 2, 4}};
  for (const Schedule& schedule : schedules()) {
    orders.push_back({std::string(schedule.name), 2, schedule.shown_chunks()});
  }
  return orders;
}
const std::vector<Order> orders = orders_of_all_schedules();

TinyLayout layout_of(const Order& order, const std::string& layers, const std::string& residency) {
  return {.layers = layers,
          .degrees = {.pipeline = order.pipeline, .data_shard = 2, .expert = layers == "d*8" ? 1 : 2},
          .schedule = order.schedule,
          .residency = residency,
          .reduction = "auto",
          .chunks = order.chunks};
}

Config configured(const Order& order, const std::string& layers, const std::string& residency) {
  Config config = config_of(layout_of(order, layers, residency));
  config.run.steps = 3;
  return config;
}

// The number that a refusal ends with: "... the smallest budget that does is 123 B (...)".
std::int64_t smallest_budget(Config config) {
  config.memory_budget = 1;
  try {
    const ResolvedRun refused(config);
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string before = "that does is ";
    return std::stoll(text.substr(text.find(before) + before.size()));
  }
  ADD_FAILURE() << "one byte was enough";
  return 0;
}

// A budget between the smallest and one under which everything stays.
void set_budget(Config& config, std::int64_t smallest, double share) {
  const Mesh mesh(config.parallelism);
  std::int64_t all = 0;
  for (const ProgramUnit& unit : program_tables(config, mesh, {}).units)
    all += unit.unsharded_bytes + unit.gradient_bytes;
  config.memory_budget = smallest + static_cast<std::int64_t>(share * static_cast<double>(all));
}

class SolvedTiming : public ::testing::TestWithParam<Order> {};

// Gradients are reduced in other intervals, so sums of eight microbatches round otherwise (schedule_parity_test.cpp);
// reduced once, the bits are those of any other residency.
TEST_P(SolvedTiming, LearnsWhatOthersLearnAndKeepsItsBudget) {
  for (const std::string layers : {"d*8", "d d e d e e d e"}) {
    Config reduced_once = configured(GetParam(), layers, "stage");
    for (auto& [family, policy] : reduced_once.shard_by_family) policy.reduction = {ReductionKind::last_microbatch};
    const LearnedRun plain = learn(reduced_once);
    const std::int64_t smallest = smallest_budget(configured(GetParam(), layers, "auto"));
    for (const bool once : {true, false}) {
      for (const double share : {0.0, 0.2, 1.0}) {
        Config config = configured(GetParam(), layers, "auto");
        if (once) {
          for (auto& [family, policy] : config.shard_by_family) policy.reduction = {ReductionKind::last_microbatch};
        }
        SCOPED_TRACE(fmt::format("{}, {}, share {}", layers, once ? "once" : "auto", share));
        set_budget(config, once ? smallest_budget(config) : smallest, share);
        const ResolvedRun resolved(config);
        const Mesh& mesh = resolved.mesh();
        std::mutex mutex;
        RunObserver observer;
        observer.after_step = [&](RankRun& run, const StepMetrics&) {
          const std::lock_guard lock(mutex);
          const auto peak = [&](Routing routing) {
            return dry_peak(resolved.config(), mesh, run.program(), run.rank(), routing).total();
          };
          // The budget bounds all that the ledger counts, with tokens routed evenly; no routing takes more than the
          // worst.
          EXPECT_LE(peak(Routing::even), *config.memory_budget);
          EXPECT_LE(run.ledger().at_peak().total(),
                    routing_decides(config) ? peak(Routing::worst) : *config.memory_budget);
          if (routing_decides(config)) return;
          const std::int64_t always = *config.memory_budget - static_bytes(run.stages().planned()).total();
          EXPECT_LE(peak_at_any_times(run.program(), mesh.coordinates(run.rank()).pp), always);
        };
        const LearnedRun run = learn(config, observer);
        EXPECT_TRUE(run.faults.empty()) << run.faults.front();
        const RunDifference apart = difference(run, plain);
        if (once && !descends(GetParam().schedule)) {
          EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
        } else {
          EXPECT_LT(apart.loss, 1e-6);
          EXPECT_LT(apart.weights, 1e-6) << apart.worst_parameter;
        }
      }
    }
  }
}

// The least that the automatic layout takes a rank to need is never less than the solver says of the layout. The
// smallest budget that a refusal names is enough under the layout that is dealt for it, and so is any larger one. Heavy
// experts, and blocks that are not: a layout by cost alone gives one rank most of the bytes.
TEST(SolvedTimingLayout, IsDealtToFitTheBudget) {
  int changed = 0;
  for (const Order& order : orders) {
    Config config = configured(order, "d d d d d d e e", "auto");
    config.model.moe.moe_intermediate_size *= 16;
    config.training.sequence_length = 16;
    config.memory_budget = std::int64_t{1} << 40;
    const auto roomy = stage_layout(config);
    const std::int64_t smallest = smallest_budget(config);
    for (const double share : {1.0, 1.02, 1.1, 1.3}) {
      SCOPED_TRACE(fmt::format("{}, {} x {} bytes", order.name(), share, smallest));
      config.memory_budget = static_cast<std::int64_t>(share * static_cast<double>(smallest));
      EXPECT_NO_THROW(ResolvedRun{config});
      changed += stage_layout(config) != roomy;
    }
  }
  EXPECT_GT(changed, 5);
}

// The layout of the fastest step may need less than one of the least bytes that pieces declare.
TEST(SolvedTimingLayout, TheSmallestBudgetIsThatOfTheLayoutThatNeedsLeast) {
  int of_roomy = 0, of_least = 0;
  for (const char* layers : {"d d e e", "d*6 e*2", "e*2 d*4"}) {
    for (const double offload : {0.0, 0.5}) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        SCOPED_TRACE(fmt::format("{}, {} offloaded, recompute {}", layers, offload, name_of(recompute)));
        Config config = configured({"1f1b"}, layers, "auto");
        config.model.hidden_size = 64;
        config.model.intermediate_size = 128;
        config.model.moe.moe_intermediate_size = 64;
        config.training.sequence_length = 32;
        config.training.recompute = recompute;
        config.state_offload = offload;
        const std::int64_t smallest = smallest_budget(config);
        const auto needed_by = [&](std::int64_t limit) {
          config.memory_budget = limit;
          Config given = config;
          given.pipeline.layout = to_string(stage_layout(config), config.model);
          return smallest_budget(given);
        };
        const std::int64_t roomy = needed_by(std::int64_t{1} << 40), least = needed_by(1);
        EXPECT_EQ(smallest, std::min(roomy, least));
        of_roomy += roomy < least;
        of_least += least < roomy;
      }
    }
  }
  EXPECT_GT(of_roomy, 0);
  EXPECT_GT(of_least, 0);
}

// Ranks that own other matrices take other bytes in muon's update.
TEST(SolvedTimingUpdate, KeepsTheBudgetOnEveryRankOfMuon) {
  for (const Degrees& degrees : {Degrees{.data_replicate = 2}, Degrees{.tensor = 2}, Degrees{.data_shard = 3}}) {
    Config config = config_of({.layers = "d d d", .degrees = degrees, .residency = "auto"});
    config.optimizer.rule = UpdateRule::muon;
    config.memory_budget = smallest_budget(config);
    const ResolvedRun run(config);
    std::int64_t most = 0;
    for (int rank = 0; rank < run.mesh().world(); ++rank) {
      const Program program = step_program(run, run.mesh().coordinates(rank));
      most = std::max(most, dry_run(run.config(), run.mesh(), program, rank).peak.total());
    }
    EXPECT_LE(most, *config.memory_budget);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, SolvedTiming, ::testing::ValuesIn(orders),
                         [](const auto& instance) { return instance.param.name(); });

}  // namespace
}  // namespace weft
