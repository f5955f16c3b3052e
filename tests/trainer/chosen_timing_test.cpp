// The meaning of full_shard by itself, by the ledgers of runs. A rank has whole parameters and whole gradients of the
// units in use, and those that lookahead and reductions in flight add. Where memory is known to be free, the fastest
// choice that fits is kept, found here by planning each.
#include "trainer/resolve/chosen_timing.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "parallel/pipeline/orders/orders.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/planning/run_plan.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/run_steps.h"

namespace weft {
namespace {

TinyLayout random_layout(std::mt19937& random) {
  const auto choose = [&](auto... values) {
    const std::array all = {values...};
    return all[std::uniform_int_distribution<std::size_t>(0, all.size() - 1)(random)];
  };
  const auto known = schedules();
  const Schedule& order = known[std::uniform_int_distribution<std::size_t>(0, known.size() - 1)(random)];
  const std::string layers = choose("d*8", "d e d e d e d e", "e*8", "d d d e e e d d");
  TinyLayout layout{.layers = layers,
                    .degrees = {.pipeline = choose(1, 2), .data_shard = 2, .expert = 1},
                    .schedule = std::string(order.name),
                    .residency = "stage",
                    .reduction = "auto",
                    .lookahead = choose(0, 1, 2),
                    .chunks = order.shown_chunks()};
  if (layout.degrees.pipeline == 1) {
    layout.schedule = "1f1b";
    layout.chunks = 1;
  }
  if (layers != "d*8") layout.degrees.expert = choose(1, 2);
  layout.recompute = choose(Recompute::none, Recompute::full);
  return layout;
}

// The most that a segment's units, or those of two segments that follow each other in a stage, take together.
std::int64_t largest(const Program& program, int rank, int segments, std::int64_t ProgramUnit::*bytes) {
  std::int64_t most = 0;
  for (const ProgramStage& stage : program.stages) {
    if (stage.rank != rank) continue;
    for (std::size_t first = 0; first < stage.segments.size(); ++first) {
      std::set<int> units;
      for (std::size_t i = first; i < std::min(first + static_cast<std::size_t>(segments), stage.segments.size());
           ++i) {
        const auto& of = program.segments[static_cast<std::size_t>(stage.segments[i])].units;
        units.insert(of.begin(), of.end());
      }
      std::int64_t sum = 0;
      for (const int unit : units) {
        const ProgramUnit& entry = program.units[static_cast<std::size_t>(unit)];
        if (!entry.replicated) sum += entry.*bytes;
      }
      most = std::max(most, sum);
    }
  }
  return most;
}

TEST(ChosenTiming, KeepsWhatFullShardPromises) {
  std::mt19937 random(20);
  for (int trial = 0; trial < 60; ++trial) {
    const TinyLayout layout = random_layout(random);
    SCOPED_TRACE(fmt::format("trial {}: {} pp {} ep {} {} lookahead {} recompute {}", trial, layout.schedule,
                             layout.degrees.pipeline, layout.degrees.expert, layout.layers, layout.lookahead,
                             name_of(layout.recompute)));
    Config config = config_of(layout);
    config.run.steps = 1;
    const Mesh mesh(config.parallelism);
    std::mutex mutex;
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics&) {
      const std::lock_guard lock(mutex);
      const Program& program = run.program();
      const int rank = mesh.coordinates(run.rank()).pp;
      const bool pairs = find_schedule(layout.schedule).overlaps;
      const BucketBytes& peaks = run.ledger().peak_by_bucket();
      EXPECT_LE(peaks[Bucket::unsharded_parameters],
                ((pairs ? 2 : 1) + layout.lookahead) * largest(program, rank, 1, &ProgramUnit::unsharded_bytes));
      EXPECT_LE(peaks[Bucket::unsharded_gradients],
                ((pairs ? 2 : 1) + config.reduce_inputs) * largest(program, rank, 2, &ProgramUnit::gradient_bytes));
    };
    run_steps(config, observer);
  }
}

struct Written {
  std::string residency, expert_residency;
  bool sharded = false, experts_sharded = false;
};

Config written_out(Config config, const Written& written) {
  for (auto& [family, policy] : config.shard_by_family) {
    const bool experts = family == Family::experts;
    policy.residency = parse_residency(experts ? written.expert_residency : written.residency);
    policy.reduction = {ReductionKind::last_microbatch};
    policy.accumulation =
        (experts ? written.experts_sharded : written.sharded) ? Accumulation::sharded : Accumulation::unsharded;
  }
  return config;
}

TEST(ChosenTiming, IsTheFastestThatFits) {
  Config config = config_of({.layers = "d e d e d e d e",
                             .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                             .residency = "stage",
                             .reduction = "auto"});
  config.hardware.ranks_per_node = 2;
  config.hardware.memory = std::int64_t{1} << 40;
  Hardware hardware = hardware_of(config);
  struct Planned {
    double seconds;
    std::int64_t even, worst;
  };
  std::vector<Planned> all;
  for (const char* residency : {"reshard_after_use", "step"}) {
    for (const char* experts : {"reshard_after_use", "step"}) {
      for (const bool sharded : {true, false}) {
        for (const bool experts_sharded : {true, false}) {
          const RunPlan plan = plan_run(written_out(config, {residency, experts, sharded, experts_sharded}), hardware);
          all.push_back({plan.time.seconds, plan.peak().total(), plan.worst_bytes().value()});
        }
      }
    }
  }
  std::vector<std::int64_t> sizes;
  for (const Planned& planned : all) sizes.insert(sizes.end(), {planned.even, planned.worst});
  std::ranges::sort(sizes);
  ASSERT_LT(sizes.front(), sizes.back());
  for (const std::int64_t room : sizes) {
    config.hardware.memory = static_cast<std::int64_t>(
        std::ceil((static_cast<double>(room) + hardware.reserved_memory.value) / Verdict::limit));
    hardware = hardware_of(config);
    // Even routing decides only where what keeps nothing exceeds the room under the worst.
    const bool at_worst = all.front().worst <= room;
    const auto bytes = [&](const Planned& planned) { return at_worst ? planned.worst : planned.even; };
    double fastest = std::numeric_limits<double>::infinity();
    for (const Planned& planned : all) {
      if (bytes(planned) <= room) fastest = std::min(fastest, planned.seconds);
    }
    const RunPlan plan = plan_run(config, hardware);
    EXPECT_TRUE(plan.verdict.fits()) << plan.verdict.text();
    EXPECT_LE(plan.time.seconds, timing_tie * fastest) << room << " bytes";
    const std::int64_t taken = at_worst ? plan.worst_bytes().value() : plan.peak().total();
    EXPECT_LE(taken, room);
    for (const Planned& planned : all) {
      if (planned.seconds > timing_tie * fastest) continue;
      EXPECT_LE(taken, bytes(planned));
    }
  }
}

// So a search for what fits needs no other, and of candidates that take as long those that keep more are not weighed.
TEST(ChosenTiming, TakesLeastOfMemoryWhereLeastIsKept) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    const TinyLayout layout = random_layout(random);
    SCOPED_TRACE(fmt::format("trial {}: {} {} lookahead {}", trial, layout.schedule, layout.layers, layout.lookahead));
    const Config config = config_of(layout);
    std::map<std::array<int, 4>, std::int64_t> bytes;
    for (int bits = 0; bits < 16; ++bits) {
      const std::array<int, 4> kept = {bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1};
      const auto residency = [](int step) { return step != 0 ? "step" : "reshard_after_use"; };
      const Config written = written_out(config, {residency(kept[0]), residency(kept[1]), kept[2] == 0, kept[3] == 0});
      bytes[kept] = fullest_peak(ResolvedRun(written)).total();
    }
    EXPECT_EQ(fullest_peak(ResolvedRun(with_least_kept(config))).total(), bytes.at({}));
    for (const auto& [less, least] : bytes) {
      for (const auto& [more, most] : bytes) {
        const bool keeps = std::ranges::equal(less, more, std::ranges::less_equal{});
        EXPECT_TRUE(!keeps || least <= most) << fmt::format("{} {}", fmt::join(less, ""), fmt::join(more, ""));
      }
    }
  }
}

// The reason has the figures of the choice and of the next alternative; where memory is unknown, what would tell.
TEST(ChosenTiming, SaysWhy) {
  Config config = config_of({.layers = "d*4", .degrees = {.pipeline = 2, .data_shard = 2}, .reduction = "auto"});
  const auto why = [&] {
    const ResolvedRun run(config);
    return step_program(run, {}).units.front().policy.reason;
  };
  EXPECT_NE(why().find("dropped after each use"), std::string::npos) << why();
  EXPECT_NE(why().find("hardware.memory"), std::string::npos) << why();
  config.hardware.memory = std::int64_t{1} << 30;
  EXPECT_NE(why().find("parameters and gradients kept whole: 0.00 GiB and "), std::string::npos) << why();
  EXPECT_NE(why().find(" of 1.00 GiB; "), std::string::npos) << why();
}

// What is chosen is written out, so that nothing is chosen again, and what was written stays.
TEST(ChosenTiming, LeavesNothingOpenAndNothingWrittenChanged) {
  Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2}, .reduction = "auto"});
  config.shard_by_family.at(Family::experts).residency = {Residency::keep_after_forward};
  const Mesh mesh(config.parallelism);
  const Config chosen = with_chosen_timing(config, mesh);
  EXPECT_EQ(with_chosen_timing(chosen, mesh), chosen);
  EXPECT_EQ(to_string(chosen.shard_by_family.at(Family::experts).residency), "keep_after_forward");
  EXPECT_EQ(to_string(chosen.shard_by_family.at(Family::dense).residency), "reshard_after_use");
  EXPECT_EQ(chosen.shard_by_family.at(Family::dense).accumulation, Accumulation::sharded);
  // Nor does a card choose what was written for another family.
  config.shard_by_family.at(Family::dense).accumulation = Accumulation::unsharded;
  for (const auto memory : {std::optional<std::int64_t>(), std::optional(std::int64_t{1} << 40)}) {
    config.hardware.memory = memory;
    const Config written = with_chosen_timing(config, mesh);
    EXPECT_EQ(written.shard_by_family.at(Family::dense).accumulation, Accumulation::unsharded);
    EXPECT_EQ(resolve_policy(written, Family::dense, 0).accumulate_sharded, false);
  }
  const Config optimizer = config_of({.degrees = {.data_shard = 2}, .strategy = ShardStrategy::optimizer});
  EXPECT_EQ(with_chosen_timing(optimizer, mesh), optimizer);
}

// What a warning says, without its bytes; these are those of all parameters, `element` each. Shards are cut between
// rows, so that a unit takes less than a row a rank more.
std::string judged(const Config& config, const std::string& warning) {
  const std::size_t from = warning.find(", up to ") + 8, to = warning.find(" KiB on a rank");
  const double told = std::stod(warning.substr(from, to - from)) * 1024.0;
  const double element = warning.find("gradients") != std::string::npos ? 4.0 : 2.0;
  double elements = 0.0;
  std::int64_t columns = 0;
  for (const ParameterSpec& parameter : model_parameters(config.model)) {
    elements += static_cast<double>(parameter.global_rows * parameter.global_columns);
    columns = std::max(columns, parameter.global_columns);
  }
  const auto units = static_cast<double>(config.model.blocks.size() + 3);  // blocks, embedding, head and what is left
  const double rounded = 0.005 * 1024.0;
  EXPECT_GE(told, element * elements - rounded) << warning;
  EXPECT_LE(told, element * (elements + units * 2.0 * static_cast<double>(columns)) + rounded) << warning;
  return warning.substr(0, from) + warning.substr(to);
}

// On one stage all that is sharded over two ranks is kept, in the dtypes of compute and of accumulation.
TEST(KeptWhole, IsToldWithItsBytes) {
  TinyLayout layout{.degrees = {.data_shard = 2},
                    .residency = "step",
                    .precision = {.compute = DType::bfloat16, .reduction = DType::float32}};
  const auto warnings = [&] {
    std::vector<std::string> said;
    for (const std::string& warning : kept_whole_warnings(config_of(layout))) {
      said.push_back(judged(config_of(layout), warning));
    }
    return said;
  };
  const std::string parameters =
      "full_shard keeps full parameters from the first forward to the last backward, up to  KiB on a rank: "
      "shard.residency = \"reshard_after_use\" drops them after each use";
  const std::string gradients =
      "full_shard keeps whole float32 gradients until the last microbatch, up to  KiB on a rank: "
      "shard.accumulation = \"sharded\" reduces those of each microbatch";
  EXPECT_EQ(warnings(), (std::vector<std::string>{parameters, gradients}));
  layout.residency = "window 1";  // of the one stage that there is
  EXPECT_EQ(warnings(), (std::vector<std::string>{parameters, gradients}));
  layout.residency = "reshard_after_use";
  EXPECT_EQ(warnings(), std::vector<std::string>{gradients});
  layout.residency = "step";
  layout.accumulate_sharded = true;
  EXPECT_EQ(warnings(), std::vector<std::string>{parameters});
  layout.reduction = "auto";  // left open
  layout.accumulate_sharded = false;
  EXPECT_EQ(warnings(), std::vector<std::string>{parameters});
  layout.residency = "stage";
  EXPECT_EQ(warnings(), std::vector<std::string>{});
}

// What promises less, or has nothing to shard over, keeps its word.
TEST(KeptWhole, IsNotToldOfWhatWasAskedFor) {
  TinyLayout layout{.degrees = {.data_shard = 2}, .residency = "step", .strategy = ShardStrategy::optimizer};
  EXPECT_EQ(kept_whole_warnings(config_of(layout)), std::vector<std::string>{});
  layout.strategy = ShardStrategy::full_shard;
  layout.degrees = {};
  EXPECT_EQ(kept_whole_warnings(config_of(layout)), std::vector<std::string>{});
  // One microbatch: its gradients are reduced as they come.
  Config config = config_of({.degrees = {.data_shard = 2}, .residency = "reshard_after_use"});
  config.training.global_batch_size = 2 * config.training.microbatch_size;
  ASSERT_EQ(config.microbatches(), 1);
  EXPECT_EQ(kept_whole_warnings(config), std::vector<std::string>{});
}

}  // namespace
}  // namespace weft
