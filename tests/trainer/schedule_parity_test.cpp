// The spine, for schedules. Whatever the order of a step, a run learns what plain 1F1B learns at the same data
// parallelism, and holds what its program says. That holds however many stages a rank runs and wherever they stand.
//
// All orders but one take the backwards of a stage's microbatches in ascending order, whole or split. A weight's
// gradient is then the same sum in the same order, and the bits agree. The norm adds otherwise, in float64 over ranks
// that hold other parameters, but the float32 factor that comes of it is the same. looped_bfs goes back the way it
// came, the last microbatch first.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <utility>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/passes/passes.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_text.h"
#include "tests/trainer/kept_activations.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

struct ScheduleCase {
  std::string schedule;
  int pipeline = 2, chunks = 1, group = 0;

  std::string name() const {
    return fmt::format("{}_pp{}_v{}{}", schedule, pipeline, chunks, group > 0 ? fmt::format("_g{}", group) : "");
  }
};
// Every schedule on 2 and on 4 ranks, and other chunks and groups.
std::vector<ScheduleCase> cases_of_all_schedules() {
  std::vector<ScheduleCase> cases = {
      {"interleaved", 2, 3}, {"interleaved", 2, 2, 4}, {"looped_bfs", 2, 4}, {"zb1p", 2, 1}};
  for (const Schedule& schedule : schedules()) {
    for (const int pipeline : {2, 4}) cases.push_back({std::string(schedule.name), pipeline, schedule.shown_chunks()});
  }
  return cases;
}
const std::vector<ScheduleCase> cases = cases_of_all_schedules();

const std::vector<std::string> models = {"d*8", "d d e d e e d e"};
const std::vector<std::string> residencies = {"stage",          "reshard_after_use", "keep_after_forward",
                                              "while_on_stage", "window 1",          "step"};
const std::vector<std::string> reductions = {"last_microbatch", "each_microbatch"};

TinyLayout layout_of(const ScheduleCase& the_case, const std::string& layers, const std::string& residency,
                     const std::string& reduction) {
  return {.layers = layers,
          .degrees = {.pipeline = the_case.pipeline, .data_shard = 2, .expert = layers == "d*8" ? 1 : 2},
          .schedule = the_case.schedule,
          .residency = residency,
          .reduction = reduction,
          .chunks = the_case.chunks,
          .microbatch_group = the_case.group};
}

Config configured(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.run.steps = 3;
  return config;
}

// What 1F1B learns on two stages: the reference of every schedule, learned once.
const LearnedRun& plain_run(const std::string& layers, const std::string& reduction) {
  static std::map<std::pair<std::string, std::string>, LearnedRun> learned;
  const auto [found, is_new] = learned.try_emplace({layers, reduction});
  if (is_new) found->second = learn(configured(layout_of({"1f1b", 2}, layers, "stage", reduction)));
  return found->second;
}

// The same tables with all sizes but one kind gone, so that the walk over the list gives that kind's own peak.
enum class Kind { parameters, gradients };
TransientPeak peak_of(const Program& program, int rank, Kind kind) {
  Program only = program;
  for (ProgramUnit& unit : only.units) {
    if (kind != Kind::parameters) unit.unsharded_bytes = unit.island_bytes = 0;
    if (kind != Kind::gradients) unit.gradient_bytes = 0;
    unit.reduce_input_bytes = unit.reduce_part_bytes = 0;
  }
  for (ProgramSegment& segment : only.segments) segment.activation_bytes = segment.pending_bytes = 0;
  return transient_peak(only, rank);
}

// Eight microbatches added in another order: 7 additions, each rounding relative to at most the sum of magnitudes,
// twice: 14 u = 8e-7 of a gradient. Adam makes of it that part of a step, 1e-3 a step and element, against weights of
// 0.1. Three steps move a weight by 3 x 1e-2 x 8e-7 = 2.5e-8 of its size. Three roundings of u = 6e-8 themselves come
// on top. Losses move with the weights.
constexpr double reordered = 1e-6;

class ScheduleParity : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(ScheduleParity, LearnsToTheBitWhat1F1BLearns) {
  for (const std::string& layers : models) {
    for (const std::string& reduction : reductions) {
      const LearnedRun& plain = plain_run(layers, reduction);
      ASSERT_TRUE(plain.faults.empty()) << plain.faults.front();
      for (const std::string& residency : residencies) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", layers, reduction, residency));
        const LearnedRun run = learn(configured(layout_of(GetParam(), layers, residency, reduction)));
        EXPECT_TRUE(run.faults.empty()) << run.faults.front();
        const RunDifference apart = difference(run, plain);
        if (descends(GetParam().schedule)) {
          EXPECT_LT(apart.loss, reordered);
          EXPECT_LT(apart.weights, reordered) << apart.worst_parameter;
          EXPECT_FALSE(apart.bitwise_equal);
        } else {
          EXPECT_EQ(apart.loss, 0.0);
          EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
        }
        EXPECT_NE(run.losses.front(), run.losses.back());
      }
    }
  }
}

TEST_P(ScheduleParity, HoldsWhatTheProgramSays) {
  for (const std::string& residency : residencies) {
    SCOPED_TRACE(residency);
    const Config config = configured(layout_of(GetParam(), "d*8", residency, "last_microbatch"));
    const Mesh mesh(config.parallelism);
    std::mutex mutex;
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      const std::lock_guard lock(mutex);
      SCOPED_TRACE(fmt::format("rank {}, step {}", run.rank(), metrics.step));
      const int rank = mesh.coordinates(run.rank()).pp;
      const BucketBytes& measured = run.ledger().peak_by_bucket();
      EXPECT_EQ(measured[Bucket::unsharded_parameters], peak_of(run.program(), rank, Kind::parameters).bytes);
      EXPECT_EQ(measured[Bucket::unsharded_gradients], peak_of(run.program(), rank, Kind::gradients).bytes);
      // To the byte what is kept, and on top of it no more than what lies between stages and what a segment makes.
      const std::int64_t kept = largest_kept(run.program(), rank);
      const std::int64_t boundary = config.microbatch_tokens() * config.model.hidden_size * 4;
      EXPECT_GE(measured[Bucket::activations], kept);
      EXPECT_LE(measured[Bucket::activations],
                kept + most_between_stages(run.program(), rank) * boundary + most_of_a_segment(config));
      EXPECT_EQ(run.ledger().live()[Bucket::activations], 0);
    };
    run_steps(config, observer);
  }
}

// A file with the cells of a named schedule is that schedule.
TEST(OwnOrder, LearnsWhatTheScheduleItWritesDownLearns) {
  for (const ScheduleCase& named : {ScheduleCase{"interleaved", 2, 2}, ScheduleCase{"zbv", 4, 2},
                                    ScheduleCase{"dualpipev", 2, 2}, ScheduleCase{"zb_h1", 4}}) {
    SCOPED_TRACE(named.name());
    const TinyLayout layout = layout_of(named, models.back(), "window 1", "each_microbatch");
    Config config = configured(layout);
    const Schedule& schedule = find_schedule(named.schedule);
    const OrderInput input{
        .ranks = named.pipeline, .chunks = named.chunks, .microbatches = static_cast<int>(config.microbatches())};
    const Program order =
        compile(schedule_only_tables(input.ranks, input.ranks * input.chunks, schedule.placement), schedule, input);
    const LearnedRun by_name = learn(config);
    config.pipeline.schedule = "own.csv";
    config.pipeline.chunks = 1;
    config.pipeline.own_order = order_from_csv(to_csv(order, Detail::compute_only));
    const LearnedRun by_file = learn(config);
    EXPECT_TRUE(by_file.faults.empty()) << by_file.faults.front();
    EXPECT_TRUE(difference(by_file, by_name).bitwise_equal);
  }
}

// Ranks need not run as many stages as one another: here 3 and 1, which no named schedule does.
TEST(OwnOrder, MayPutStagesAnywhere) {
  Config config = configured({.layers = "d*8", .degrees = {.pipeline = 2, .data_shard = 2}});
  config.training.global_batch_size = 4;  // two microbatches
  const LearnedRun plain = learn(config);
  config.pipeline.schedule = "own.csv";
  config.pipeline.own_order = order_from_csv("0F0,1F0,0F1,1F1,3F0,3B0,3F1,3B1,1B0,0B0,1B1,0B1\n2F0,2F1,2B0,2B1\n");
  const LearnedRun own = learn(config);
  EXPECT_TRUE(own.faults.empty()) << own.faults.front();
  EXPECT_TRUE(difference(own, plain).bitwise_equal);
}

INSTANTIATE_TEST_SUITE_P(Schedules, ScheduleParity, ::testing::ValuesIn(cases),
                         [](const auto& instance) { return instance.param.name(); });

}  // namespace
}  // namespace weft
