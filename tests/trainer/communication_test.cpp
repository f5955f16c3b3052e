// What a step communicates is what its program says: counters of all ranks against the actions and the collectives of
// segments, group by group.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// Adds `count` calls of `bytes` each, if the group has anyone to talk to.
class Expected {
 public:
  explicit Expected(const Mesh& mesh) : mesh_(mesh) {}
  void add(int rank, Group group, CollectiveOp op, std::int64_t bytes, std::int64_t count = 1) {
    if (mesh_.group_of(group, rank).size() == 1) return;
    CommunicationCount& entry = counters_[{std::string(name_of(group)), op}];
    entry.count += count;
    entry.bytes += bytes;
  }
  const CommunicationCounters& counters() const { return counters_; }

 private:
  const Mesh& mesh_;
  CommunicationCounters counters_;
};

// The planned unit behind a program's unit.
const PlannedUnit& planned_unit(RankRun& run, const ProgramUnit& unit) {
  for (const PlannedUnit& planned : run.stage().planned_units()) {
    if (planned.plan.name == unit.name) return planned;
  }
  fail("{} is not on this stage", unit.name);
}

void add_reduction(Expected& expected, RankRun& run, const ProgramUnit& unit) {
  const int rank = run.rank();
  if (unit.replicated) return expected.add(rank, Group::tokens, CollectiveOp::all_reduce, unit.reduce_bytes);
  const PlannedUnit& planned = planned_unit(run, unit);
  const std::int64_t partial = planned.layout.tensor_replicated_size() * size_of(DType::float32);
  if (partial > 0) expected.add(rank, Group::tp, CollectiveOp::all_reduce, partial);
  const bool whole = planned.layout.shards == 1;
  expected.add(rank, unit.group, whole ? CollectiveOp::all_reduce : CollectiveOp::reduce_scatter, unit.reduce_bytes);
  expected.add(rank, planned.replicate_group, CollectiveOp::all_reduce, unit.reduce_bytes / planned.layout.shards);
}

// all_to_all sends rows wherever routing says. Each exchange moves every choice's row once out to its expert and once
// back, so that over a whole group both ways move the rows of the way out, which are known. Each rank of an
// expert-tensor group then gathers the rows of all of them, and reduces as many. What is declared as a bound takes its
// known share of these sums here. `choices` are the bytes of the rows of a rank's own choices.
void add_segment(Expected& expected, int rank, const ProgramSegment& segment, Op during, std::int64_t choices,
                 int expert_tensor) {
  for (const SegmentCollective& collective : segment.collectives) {
    if (collective.during != during) continue;
    const std::int64_t share = collective.group == Group::etp ? choices * expert_tensor : choices;
    if (collective.is_bound) {
      EXPECT_GE(collective.bytes, share);
    } else if (collective.op == CollectiveOp::all_to_all) {
      EXPECT_EQ(collective.bytes, choices);
    }
    expected.add(rank, collective.group, collective.op, collective.is_bound ? share : collective.bytes,
                 collective.count);
  }
}

void add_actions(Expected& expected, const Config& config, const Mesh& mesh, RankRun& run) {
  const Degrees& degrees = config.parallelism;
  const std::int64_t choices = config.microbatch_tokens() / (degrees.context * degrees.tensor) *
                               config.model.moe.num_experts_per_tok * config.model.hidden_size *
                               size_of(config.precision.compute);
  const auto add = [&](int rank_of_run, const ProgramSegment& segment, Op during) {
    add_segment(expected, rank_of_run, segment, during, choices, degrees.expert_tensor);
  };
  const Program& program = run.program();
  const int rank = run.rank();
  for (const Action& action : program.ranks[static_cast<std::size_t>(mesh.coordinates(rank).pp)]) {
    if (action.unit) {
      const ProgramUnit& unit = program.units[static_cast<std::size_t>(*action.unit)];
      if (action.op == Op::unshard && unit.gather_bytes > 0) {
        expected.add(rank, unit.group, CollectiveOp::all_gather, action.bytes);
      }
      if (action.op == Op::reduce_gradient) add_reduction(expected, run, unit);
    }
    if (action.segment) {
      const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*action.segment)];
      if (action.op == Op::forward) add(rank, segment, Op::forward);
      if (makes_input_gradient(action.op)) add(rank, segment, Op::backward_input);
      if (makes_weight_gradient(action.op)) add(rank, segment, Op::backward_weight);
    }
    if (is_send(action.op)) expected.add(rank, Group::pp, CollectiveOp::send, action.bytes);
    if (is_receive(action.op)) expected.add(rank, Group::pp, CollectiveOp::receive, 0);
    if (action.op == Op::gradient_norm) expected.add(rank, Group::world, CollectiveOp::all_reduce, sizeof(double));
  }
}

class Communication : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(Communication, IsWhatTheProgramSays) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  const Mesh mesh(config.parallelism);
  std::mutex mutex;
  Expected expected(mesh);
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    const std::lock_guard lock(mutex);
    add_actions(expected, config, mesh, run);
  };
  const TrainResult result = run_steps(config, observer);
  ASSERT_FALSE(expected.counters().empty());
  for (const StepMetrics& step : result.steps) {
    CommunicationCounters counted = step.communication;
    EXPECT_EQ(counted.size(), expected.counters().size());
    for (const auto& [key, count] : expected.counters()) {
      EXPECT_EQ(counted[key].count, count.count) << key.group << " " << name_of(key.op) << ", step " << step.step;
      EXPECT_EQ(counted[key].bytes, count.bytes) << key.group << " " << name_of(key.op) << ", step " << step.step;
    }
  }
}

std::vector<TinyLayout> layouts() {
  const std::string mixed = "d e d e";
  const Degrees mesh8{.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2};
  return {
      {.name = "shard4", .degrees = {.data_shard = 4}},
      {.name = "shard4_no_shard", .degrees = {.data_shard = 4}, .strategy = ShardStrategy::no_shard},
      {.name = "shard2_replicate2", .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "tp4", .degrees = {.tensor = 4}},
      {.name = "pp4", .degrees = {.pipeline = 4}},
      {.name = "ep4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 4}},
      {.name = "ep2_of_4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2}},
      {.name = "mesh8", .layers = mixed, .degrees = mesh8},
      {.name = "mesh8_gpipe_each_use", .layers = mixed, .degrees = mesh8, .schedule = "gpipe", .residency = "each_use"},
      {.name = "mesh8_step", .layers = mixed, .degrees = mesh8, .residency = "step"},
      {.name = "mesh8_each_microbatch", .layers = mixed, .degrees = mesh8, .reduction = "each_microbatch"},
      {.name = "mesh8_bfloat16",
       .layers = mixed,
       .degrees = mesh8,
       .precision = {DType::float32, DType::bfloat16, DType::bfloat16}},
      {.name = "etp2_ep2_shard4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "context2_tp2_shard2_ep2",
       .layers = mixed,
       .degrees = {.data_shard = 2, .context = 2, .tensor = 2, .expert = 2}},
      {.name = "replicate2_shard2_tp2_ep2",
       .layers = mixed,
       .degrees = {.data_replicate = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, Communication, ::testing::ValuesIn(layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
