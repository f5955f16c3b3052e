// The memory of a run is that of its program: measured with the ledger of every rank, compared to the byte.
#include <gtest/gtest.h>

#include <iterator>
#include <mutex>
#include <set>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

constexpr PrecisionConfig bfloat16_compute{DType::float32, DType::bfloat16, DType::float32};
constexpr PrecisionConfig bfloat16_reduction{DType::float32, DType::bfloat16, DType::bfloat16};
constexpr auto no_shard = ShardStrategy::no_shard;

std::vector<TinyLayout> memory_layouts() {
  const std::string mixed = "d e d e";
  const Degrees shard2{.data_shard = 2}, mesh8{.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2};
  return {
      {.name = "one_rank"},
      {.name = "one_rank_bfloat16", .precision = bfloat16_compute},
      {.name = "one_rank_selective", .recompute = Recompute::selective},
      {.name = "shard2_bfloat16_full", .degrees = shard2, .precision = bfloat16_compute, .recompute = Recompute::full},
      {.name = "mesh8_full_reshard_after_use",
       .layers = mixed,
       .degrees = mesh8,
       .residency = "reshard_after_use",
       .recompute = Recompute::full},
      {.name = "mesh8_selective", .layers = mixed, .degrees = mesh8, .recompute = Recompute::selective},
      {.name = "shard4", .degrees = {.data_shard = 4}},
      {.name = "shard4_no_shard", .degrees = {.data_shard = 4}, .strategy = no_shard},
      {.name = "shard2_bfloat16_reshard_after_use",
       .degrees = shard2,
       .residency = "reshard_after_use",
       .precision = bfloat16_compute},
      {.name = "shard2_no_shard_bfloat16_each_microbatch",
       .degrees = shard2,
       .reduction = "each_microbatch",
       .strategy = no_shard,
       .precision = bfloat16_reduction},
      {.name = "pp2_tp2_shard2_reshard_after_use",
       .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2},
       .residency = "reshard_after_use"},
      {.name = "mesh8_visit", .layers = mixed, .degrees = mesh8, .residency = "while_on_stage"},
      {.name = "mesh8_step", .layers = mixed, .degrees = mesh8, .residency = "step"},
      {.name = "mesh8_reshard_after_use_lookahead3",
       .layers = mixed,
       .degrees = mesh8,
       .residency = "reshard_after_use",
       .lookahead = 3},
      {.name = "mesh8_each_microbatch", .layers = mixed, .degrees = mesh8, .reduction = "each_microbatch"},
      {.name = "mesh8_every3_gpipe", .layers = mixed, .degrees = mesh8, .schedule = "gpipe", .reduction = "every 3"},
      {.name = "mesh8_bfloat16", .layers = mixed, .degrees = mesh8, .precision = bfloat16_reduction},
      {.name = "mesh8_no_shard_bfloat16",
       .layers = mixed,
       .degrees = mesh8,
       .strategy = no_shard,
       .precision = bfloat16_compute},
      {.name = "moe_replicate2_shard2_ep2",
       .layers = "e*4",
       .degrees = {.data_replicate = 2, .data_shard = 2, .expert = 2}},
      {.name = "moe_ep4_across_replicas",
       .layers = "e*4",
       .degrees = {.data_replicate = 2, .data_shard = 2, .expert = 4}},
      {.name = "etp2_ep2_shard4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "context2_tp2_shard2_ep2",
       .layers = mixed,
       .degrees = {.data_shard = 2, .context = 2, .tensor = 2, .expert = 2}},
      {.name = "pp4_tp2", .degrees = {.pipeline = 4, .tensor = 2}},
      {.name = "pp3", .degrees = {.pipeline = 3}},
      {.name = "pp4_zb_h1", .degrees = {.pipeline = 4}, .schedule = "zb_h1"},
      {.name = "tied_shard2", .degrees = shard2, .tied = true},
      {.name = "tied_mesh8_bfloat16", .layers = mixed, .degrees = mesh8, .precision = bfloat16_reduction, .tied = true},
      {.name = "predictors_apart", .layers = "d e m*2", .degrees = {.pipeline = 4}, .stages = "Ed|e|mm|L"},
      {.name = "predictor_tied",
       .layers = "d e m",
       .degrees = {.pipeline = 2, .data_shard = 2},
       .precision = bfloat16_reduction,
       .tied = true},
      {.name = "tied_zbv", .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zbv", .chunks = 2, .tied = true},
  };
}

// The largest that full parameters and full gradients become along one rank's list, each at its own instant. A unit's
// parameters live from its UNSHARD to its RESHARD (their parts from RESHARD_SECONDARY to UNSHARD_SECONDARY). Its
// gradients live from the first weight gradient to the next reduction, then until the pool of inputs is full or the
// norm is taken. Reductions in another dtype read a copy, and those of routing helpers are over at once.
struct ProgramPeaks {
  std::int64_t parameters = 0, gradients = 0;
};

ProgramPeaks peaks_of(const Program& program, int pipeline_rank) {
  std::set<int> gathered, parted, accumulating;
  std::vector<int> in_flight;
  ProgramPeaks peaks;
  const auto sum = [&](const std::set<int>& units, auto bytes) {
    std::int64_t total = 0;
    for (int unit : units) total += program.units[static_cast<std::size_t>(unit)].*bytes;
    return total;
  };
  for (const Action& action : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    if (is_gather(action.op)) gathered.insert(*action.unit);
    if (action.op == Op::reshard_secondary) parted.insert(*action.unit);
    // Both exist while one is made from the other.
    peaks.parameters = std::max(peaks.parameters,
                                sum(gathered, &ProgramUnit::unsharded_bytes) + sum(parted, &ProgramUnit::island_bytes));
    if (action.op == Op::unshard_secondary) parted.erase(*action.unit);
    if (is_reshard(action.op)) gathered.erase(*action.unit);
    if (is_reduction(action.op) && accumulating.erase(*action.unit) > 0) {
      const ProgramUnit& unit = program.units[static_cast<std::size_t>(*action.unit)];
      const bool read_later = !unit.replicated && (unit.gradient_bytes > 0 || unit.reduce_input_bytes > 0);
      if (read_later) in_flight.push_back(*action.unit);
      if (std::ssize(in_flight) > program.reduce_inputs) in_flight.erase(in_flight.begin());
    }
    if (action.op == Op::gradient_norm) in_flight.clear();
    if (makes_weight_gradient(action.op)) {
      const auto& units = program.segments[static_cast<std::size_t>(*action.segment)].units;
      accumulating.insert(units.begin(), units.end());
    }
    std::int64_t gradients = sum(accumulating, &ProgramUnit::gradient_bytes);
    for (int unit : in_flight) {
      const ProgramUnit& entry = program.units[static_cast<std::size_t>(unit)];
      if (entry.reduce_input_bytes == 0) gradients += entry.gradient_bytes;
    }
    peaks.gradients = std::max(peaks.gradients, gradients);
  }
  return peaks;
}

class ProgramMemory : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(ProgramMemory, IsWhatTheLedgerMeasures) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  const Mesh mesh(config.parallelism);
  std::mutex mutex;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(fmt::format("rank {}, step {}", run.rank(), metrics.step));
    const BucketBytes& measured = run.ledger().peak_by_bucket();
    const BucketBytes& predicted = run.predicted();
    for (std::size_t b = 0; b < bucket_count; ++b) {
      const auto bucket = static_cast<Bucket>(b);
      if (!is_static(bucket)) continue;
      EXPECT_EQ(measured[bucket], predicted[bucket]) << name_of(bucket);
      EXPECT_EQ(run.ledger().live()[bucket], predicted[bucket]) << name_of(bucket);
      EXPECT_EQ(run.measured()[bucket], predicted[bucket]) << name_of(bucket);
    }
    const int pipeline_rank = mesh.coordinates(run.rank()).pp;
    const ProgramPeaks peaks = peaks_of(run.program(), pipeline_rank);
    EXPECT_EQ(measured[Bucket::unsharded_parameters], peaks.parameters);
    EXPECT_EQ(measured[Bucket::unsharded_gradients], peaks.gradients);
    // Nothing transient outlives the step.
    EXPECT_EQ(run.ledger().live()[Bucket::unsharded_parameters], 0);
    EXPECT_EQ(run.ledger().live()[Bucket::unsharded_gradients], 0);
    EXPECT_EQ(run.ledger().live()[Bucket::activations], 0);
    EXPECT_EQ(run.ledger().live()[Bucket::moe_routing], 0);
    // The prediction takes its transient buckets at one instant, that of their largest sum. Each is therefore at most
    // what the bucket reaches at its own. Together they are at least any single one.
    EXPECT_LE(predicted[Bucket::unsharded_parameters], peaks.parameters);
    EXPECT_LE(predicted[Bucket::unsharded_gradients], peaks.gradients);
    EXPECT_GE(transient_peak(run.program(), pipeline_rank).bytes, std::max(peaks.parameters, peaks.gradients));
    // Dense segments keep exactly the bytes they declare, which all exist at the predicted instant, besides what flows
    // between segments: a lower bound. (Routed tokens are predicted by a bound from above, in another bucket.)
    if (GetParam().layers == "d*4") {
      EXPECT_GE(measured[Bucket::activations], predicted[Bucket::activations]);
    }
  };
  const KeptRun result = run_kept(config, observer);
  ASSERT_EQ(result.predicted.size(), static_cast<std::size_t>(mesh.world()));
  EXPECT_GT(result.measured.back()[Bucket::sharded_parameters], 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ProgramMemory, ::testing::ValuesIn(memory_layouts()),
                         [](const auto& instance) { return instance.param.name; });

TEST(PredictedMemory, NamesStaticBucketsThatDiffer) {
  BucketBytes predicted, measured;
  predicted[Bucket::sharded_parameters] = measured[Bucket::sharded_parameters] = 12;
  predicted[Bucket::optimizer_state] = 24;
  measured[Bucket::optimizer_state] = 23;
  measured[Bucket::replicated_parameters] = 1;
  measured[Bucket::workspace] = 100;  // not predicted to the byte
  EXPECT_EQ(differing_static_buckets(predicted, measured),
            (std::vector{Bucket::replicated_parameters, Bucket::optimizer_state}));
  EXPECT_TRUE(differing_static_buckets(predicted, predicted).empty());
}

class SteadyState : public ::testing::TestWithParam<TinyLayout> {};

// Blocks are kept for reuse. Routing sends other numbers of tokens to other ranks in every step; blocks reserved for
// the largest number fit all the same.
TEST_P(SteadyState, AsksTheSystemForNothingFromTheThirdStep) {
  Config config = config_of(GetParam());
  config.run.steps = 12;
  config.optimizer.learning_rate = 1e-2;  // so that routing moves
  const KeptRun result = run_kept(config);
  ASSERT_EQ(result.steps.size(), 12u);
  EXPECT_GT(result.steps.front().system_allocations, 0);
  std::set<double> loads;
  for (const StepMetrics& step : result.steps) {
    if (step.step >= 3) {
      EXPECT_EQ(step.system_allocations, 0) << "step " << step.step;
    }
    if (!step.moe.empty()) loads.insert(step.moe.front().max_over_mean);
  }
  // The comparison means something: the load did vary.
  if (!result.steps.front().moe.empty()) {
    EXPECT_GT(loads.size(), 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, SteadyState, ::testing::ValuesIn(memory_layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
