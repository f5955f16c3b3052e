// Gathers and reductions behind computation, proved from the order in which a step queues its work: which lane records
// fences where and waits for which. A device that only takes notes makes a graph of it, on any machine. The graph tells
// what each piece of work has to wait for. Given how long pieces take, it tells when the step ends.
// tests/cuda/overlap_test.cpp measures the same on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "parallel/comm/local.h"
#include "tests/parallel/forwarding_device.h"
#include "tests/trainer/backend_on.h"
#include "tests/trainer/slow_link.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

constexpr int ranks = 2;

// One thing that a rank's thread did, in its order.
struct Note {
  enum Kind { action, compute, gather, reduce, record, wait, host_wait } kind = action;
  std::string lane = {};
  std::size_t action_index = 0;  // `action`, and the work of one
  int rank = -1;                 // of a wait: whose fence, recorded at which note of that rank
  std::size_t place = 0;
};
using Notes = std::vector<Note>;

class NotedEvent final : public Event {
 public:
  NotedEvent(Notes& notes, int rank_, std::size_t place_) : rank(rank_), place(place_), notes_(notes) {}
  void synchronize() const override { notes_.push_back({Note::host_wait}); }
  bool reached() const override { return true; }
  double seconds_since(const Event&) const override { return 0.0; }

  const int rank;
  const std::size_t place;

 private:
  Notes& notes_;  // of the rank that recorded, which alone blocks its host for it
};

class NotedStream final : public Stream {
 public:
  NotedStream(Device& device, Notes& notes, int rank, std::string_view lane)
      : device_(device), notes_(notes), rank_(rank), lane_(lane) {}
  Device& device() override { return device_; }
  Fence record() override {
    notes_.push_back({Note::record, lane_});
    return std::make_shared<NotedEvent>(notes_, rank_, notes_.size() - 1);
  }
  Fence record_time() override { return record(); }
  void wait(const Fence& fence) override {
    if (fence == nullptr) return;
    const auto& event = dynamic_cast<const NotedEvent&>(*fence);
    notes_.push_back({Note::wait, lane_, 0, event.rank, event.place});
  }
  void synchronize() override { notes_.push_back({Note::host_wait}); }

 private:
  Device& device_;
  Notes& notes_;
  const int rank_;
  const std::string lane_;
};

// Computes at once, on the CPU: the notes say what another device might put off.
class NotedDevice final : public ForwardingDevice {
 public:
  NotedDevice(Notes& notes, int rank) : notes_(notes), rank_(rank) {}
  std::unique_ptr<Stream> create_stream(std::string_view lane) override {
    return std::make_unique<NotedStream>(*this, notes_, rank_, lane);
  }

 private:
  Notes& notes_;
  const int rank_;
};

// One step of `ranks` ranks, both of which run the same list.
struct NotedStep {
  Program program;
  std::vector<Notes> notes;

  std::span<const Action> actions() const { return program.ranks.front(); }
};

NotedStep noted_step(Config config) {
  config.parallelism = {.data_shard = ranks};
  config.run.steps = 1;
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  NvtxDomain domain;
  NotedStep step;
  step.notes.resize(ranks);
  run_local_ranks(ranks, [&](Communicator& world) {
    Notes& notes = step.notes[static_cast<std::size_t>(world.rank())];
    const std::unique_ptr<Backend> backend = backend_on<NotedDevice>(notes, world.rank());
    // Of the actions, the notes of a set-up have none.
    std::size_t begun = 0;
    std::span<const Action> actions;
    const auto note_compute = [&] {
      // An action waits first and then computes: by its end all its waits are queued.
      if (begun > 0 && is_compute(actions[begun - 1].op)) notes.push_back({Note::compute, "compute", begun - 1});
    };
    const SlowLink link{[&](Stream&) {
                          if (begun > 0) notes.push_back({Note::gather, "gather", begun - 1});
                        },
                        [&](Stream&) {
                          notes.push_back({Note::reduce, "reduce", begun - 1});
                        }};
    SlowLinkCommunicator slow(world, link);
    RankRun run(resolved, data, domain, {*backend, slow, [&](std::string_view) {
                                           note_compute();
                                           notes.push_back({Note::action, {}, begun++});
                                         }});
    actions = run.program().ranks.front();
    run.step(1);
    require(begun == actions.size() && actions.back().op == Op::optimizer_step, "a step ends with its optimizer");
    if (world.rank() == 0) step.program = run.program();
  });
  return step;
}

struct Durations {
  double compute = 0.0, gather = 0.0, reduce = 0.0;
};

// What is known at one place of a lane: when it is reached, and how much of each rank must be done by then.
struct Reached {
  double time = 0.0;
  std::array<std::size_t, ranks> computed{};  // compute actions
  std::array<std::size_t, ranks> reduced{};

  void after(const Reached& other) {
    time = std::max(time, other.time);
    for (std::size_t r = 0; r < ranks; ++r) {
      computed[r] = std::max(computed[r], other.computed[r]);
      reduced[r] = std::max(reduced[r], other.reduced[r]);
    }
  }
};

// When each note is reached if work takes as long as said and starts as soon as lanes and fences let it.
std::vector<std::vector<Reached>> played(const NotedStep& step, const Durations& durations) {
  std::vector<std::vector<Reached>> reached(ranks);
  std::vector<std::map<std::string, Reached>> lanes(ranks);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = reached[r].size(); i < step.notes[r].size(); ++i) {
        const Note& note = step.notes[r][i];
        Reached& lane = lanes[r][note.lane];
        if (note.kind == Note::wait) {
          const auto& from = reached[static_cast<std::size_t>(note.rank)];
          if (note.place >= from.size()) break;
          lane.after(from[note.place]);
        }
        if (note.kind == Note::compute) lane.time += durations.compute, ++lane.computed[r];
        if (note.kind == Note::gather) lane.time += durations.gather;
        if (note.kind == Note::reduce) lane.time += durations.reduce, ++lane.reduced[r];
        reached[r].push_back(lane);
        progress = true;
      }
    }
  }
  for (std::size_t r = 0; r < ranks; ++r)
    require(reached[r].size() == step.notes[r].size(), "no fence waits for itself");
  return reached;
}

// When the compute lane has done the step's last action.
double step_time(const NotedStep& step, const Durations& durations) {
  const auto reached = played(step, durations);
  double time = 0.0;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < reached[r].size(); ++i) {
      if (step.notes[r][i].lane == "compute") time = std::max(time, reached[r][i].time);
    }
  }
  return time;
}

double count(const NotedStep& step, const std::function<bool(const Action&)>& predicate) {
  return static_cast<double>(std::count_if(step.actions().begin(), step.actions().end(), predicate));
}
double computations(const NotedStep& step) {
  return count(step, [](const Action& action) { return is_compute(action.op); });
}
double gathers(const NotedStep& step) {
  return count(step, [](const Action& action) { return action.op == Op::unshard; });
}
double reductions(const NotedStep& step) {
  return count(step, [](const Action& action) { return action.op == Op::reduce_gradient; });
}

TinyLayout layout_with(const std::string& layers, int lookahead) {
  return {.layers = layers, .residency = "reshard_after_use", .lookahead = lookahead};
}

class LaneOverlap : public ::testing::TestWithParam<const char*> {};
// With experts as well, whose segments read two units.
class LaneOverlapOfGathers : public ::testing::TestWithParam<const char*> {};

bool reads_gathered(const NotedStep& step, const Action& action) {
  if (!is_compute(action.op)) return false;
  const ProgramSegment& segment = step.program.segments[static_cast<std::size_t>(*action.segment)];
  return action.op == Op::forward || segment.reads_weights_backward;
}

// Between the last reshard of a microbatch and the first gather of the next one stands the embedding's backward. It
// reads no weights, so that this one gather is hidden even without lookahead.
double computations_without_reads(const NotedStep& step) {
  return count(step, [&](const Action& action) { return is_compute(action.op) && !reads_gathered(step, action); });
}

// A gather takes half as long as a computation.
TEST_P(LaneOverlap, WithoutLookaheadEveryGatherIsWaitedFor) {
  const NotedStep step = noted_step(config_of(layout_with(GetParam(), 0)));
  const double hidden = computations_without_reads(step) - 1;  // behind the last one nothing is gathered
  ASSERT_EQ(hidden, 7);
  EXPECT_DOUBLE_EQ(step_time(step, {.compute = 2, .gather = 1}), 2 * computations(step) + gathers(step) - hidden);
}

TEST_P(LaneOverlapOfGathers, WithLookaheadOnlyTheFirstGatherIsWaitedFor) {
  for (int lookahead : {1, 2, 4}) {
    const NotedStep step = noted_step(config_of(layout_with(GetParam(), lookahead)));
    const double alone = 2 * computations(step);
    // With few units a longer lookahead keeps more than it gathers.
    ASSERT_GT(gathers(step), lookahead == 1 ? 20 : 3);
    // The embedding's: nothing is computed before it.
    EXPECT_DOUBLE_EQ(step_time(step, {.compute = 2, .gather = 1}), alone + 1) << "lookahead " << lookahead;
  }
}

TEST_P(LaneOverlap, OfReductionsOnlyTheLastIsWaitedFor) {
  for (const char* reduction : {"last_microbatch", "each_microbatch"}) {
    TinyLayout layout = layout_with(GetParam(), 1);
    layout.reduction = reduction;
    const NotedStep step = noted_step(config_of(layout));
    ASSERT_GE(reductions(step), 4);
    EXPECT_DOUBLE_EQ(step_time(step, {.compute = 2, .reduce = 1}), 2 * computations(step) + 1) << reduction;
  }
}

// When the last forward or backward is done.
double computed_at(const NotedStep& step, const Durations& durations) {
  const auto reached = played(step, durations);
  double time = 0.0;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < reached[r].size(); ++i) {
      if (step.notes[r][i].kind == Note::compute) time = std::max(time, reached[r][i].time);
    }
  }
  return time;
}

// Reductions that take ten times as long as a computation. With room for all their inputs they delay no computation.
// With less room an accumulator waits for the reduction that had its place, the sooner the less room there is.
TEST_P(LaneOverlap, AnAccumulatorWaitsForAReductionOnlyWhenThePoolIsFull) {
  TinyLayout layout = layout_with(GetParam(), 1);
  layout.reduction = "each_microbatch";
  const auto time_with = [&](int reduce_inputs) {
    layout.reduce_inputs = reduce_inputs;
    return computed_at(noted_step(config_of(layout)), {.compute = 1, .reduce = 10});
  };
  const NotedStep step = noted_step(config_of(layout));
  EXPECT_DOUBLE_EQ(time_with(1000), computations(step));
  double before = std::numeric_limits<double>::infinity();
  for (int reduce_inputs : {0, 1, 2, 4}) {
    const double time = time_with(reduce_inputs);
    EXPECT_GT(time, computations(step));
    EXPECT_LT(time, before) << reduce_inputs;
    before = time;
  }
}

std::size_t computations_before(const NotedStep& step, std::size_t action) {
  const auto actions = step.actions().first(action);
  return static_cast<std::size_t>(
      std::ranges::count_if(actions, [](const Action& before) { return is_compute(before.op); }));
}
// The same before the last RESHARD that stands before `action`: what must be done for the room that is free by then.
std::size_t computations_before_reshard(const NotedStep& step, std::size_t action) {
  while (action > 0 && step.actions()[action - 1].op != Op::reshard) --action;
  return computations_before(step, action);
}

// The first action behind `from` that reads the unit, as a number among the list's computations.
std::size_t reader_of(const NotedStep& step, int unit, std::size_t from) {
  const auto actions = step.actions();
  std::size_t number = computations_before(step, from);
  for (std::size_t i = from; i < actions.size(); ++i) {
    if (!is_compute(actions[i].op)) continue;
    const ProgramSegment& segment = step.program.segments[static_cast<std::size_t>(*actions[i].segment)];
    if (reads_gathered(step, actions[i]) && std::ranges::find(segment.units, unit) != segment.units.end())
      return number;
    ++number;
  }
  fail("nobody reads unit {}", unit);
}

const Action& last_computation(const NotedStep& step, std::size_t action) {
  while (!is_compute(step.actions()[--action].op)) {
  }
  return step.actions()[action];
}

// Whatever pieces take, a gather needs the computations whose end freed room for it, on any rank. It needs nothing of
// the computation before its reader. That one needs no gather but those of the ones before, as it is queued before the
// wait for this one.
TEST_P(LaneOverlap, AGatherWaitsForNoComputationThatItCouldHideBehind) {
  for (int lookahead : {0, 1}) {
    const NotedStep step = noted_step(config_of(layout_with(GetParam(), lookahead)));
    const auto reached = played(step, {});
    std::size_t seen = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < step.notes[r].size(); ++i) {
        if (step.notes[r][i].kind != Note::gather) continue;
        ++seen;
        const std::size_t action = step.notes[r][i].action_index;
        const std::size_t reader = reader_of(step, *step.actions()[action].unit, action);
        const std::size_t needed = *std::ranges::max_element(reached[r][i].computed);
        if (reader == 0) continue;
        if (lookahead == 0) {
          const std::size_t passed = reads_gathered(step, last_computation(step, action)) ? 0 : 1;
          EXPECT_EQ(needed, reader - passed) << "the test would not see the difference";
        } else {
          EXPECT_LT(needed, reader) << "gather of action " << action << " on rank " << r;
          EXPECT_LE(needed, computations_before_reshard(step, action)) << "action " << action << " on rank " << r;
        }
      }
    }
    EXPECT_EQ(static_cast<double>(seen), ranks * gathers(step));
  }
}

// The compute lane waits for a gather in the very action that reads what it brought, not before.
TEST_P(LaneOverlap, ComputeWaitsForAGatherOnlyWhereItReads) {
  const NotedStep step = noted_step(config_of(layout_with(GetParam(), 3)));
  for (std::size_t r = 0; r < ranks; ++r) {
    const Notes& notes = step.notes[r];
    std::vector<std::size_t> action_of(notes.size());
    std::optional<std::size_t> action;
    std::size_t waits = 0;
    for (std::size_t i = 0; i < notes.size(); ++i) {
      if (notes[i].kind == Note::action) action = notes[i].action_index;
      action_of[i] = action.value_or(0);
      if (!action || notes[i].kind != Note::wait || notes[i].lane != "compute") continue;
      const Note& recorded = step.notes[static_cast<std::size_t>(notes[i].rank)][notes[i].place];
      const Action& reading = step.actions()[*action];
      if (recorded.lane != "gather") {
        // The norm needs the reductions, and is summed over the ranks; the totals behind the optimizer are, too.
        // Nothing before needs either.
        EXPECT_TRUE(reading.op == Op::gradient_norm || reading.op == Op::optimizer_step) << recorded.lane << *action;
        continue;
      }
      ++waits;
      ASSERT_EQ(static_cast<std::size_t>(notes[i].rank), r);
      const Action& gather = step.actions()[action_of[notes[i].place]];
      ASSERT_EQ(gather.op, Op::unshard);
      ASSERT_TRUE(reads_parameters(reading.op));
      const auto& units = step.program.segments[static_cast<std::size_t>(*reading.segment)].units;
      EXPECT_NE(std::ranges::find(units, *gather.unit), units.end());
    }
    EXPECT_EQ(static_cast<double>(waits), gathers(step));
  }
}

// The waits of the hosts of all ranks between the actions of a step. A host that waits for the device cannot queue
// ahead of it.
std::int64_t host_waits(const NotedStep& step) {
  std::int64_t waits = 0;
  for (const Notes& notes : step.notes) {
    bool inside = false;
    for (const Note& note : notes) {
      if (note.kind == Note::action) inside = step.actions()[note.action_index].op != Op::optimizer_step;
      if (inside && note.kind == Note::host_wait) ++waits;
    }
  }
  return waits;
}

TEST_P(LaneOverlap, TheHostWaitsForNothingBetweenTheActions) {
  EXPECT_EQ(host_waits(noted_step(config_of(layout_with(GetParam(), 1)))), 0);
}

// In each block of experts and microbatch, unless experts compute their whole capacity. The memory that the counts come
// to waits once more, for nothing, before it is given back.
TEST(LaneOverlapOfExperts, TheHostWaitsForRowCountsUnlessTheyArePadded) {
  Config config = config_of(layout_with("d e*2", 1));
  config.model.moe.capacity_factor = 1.0;
  const std::int64_t microbatches =
      config.training.global_batch_size / config.training.microbatch_size;  // of all ranks
  EXPECT_EQ(host_waits(noted_step(config)), 2 * 2 * microbatches);
  config.model.moe.pad_to_capacity = true;
  EXPECT_EQ(host_waits(noted_step(config)), 0);
}

std::string name_of_layers(const ::testing::TestParamInfo<const char*>& instance) {
  std::string name = instance.param;
  std::erase(name, ' ');
  std::ranges::replace(name, '*', 'x');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, LaneOverlap, ::testing::Values("d*4", "d*2"), name_of_layers);
INSTANTIATE_TEST_SUITE_P(Models, LaneOverlapOfGathers, ::testing::Values("d*4", "d*2", "d e", "e*3"), name_of_layers);

}  // namespace
}  // namespace weft
