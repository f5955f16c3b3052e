// The second half of solving: from what stays to triggers, waits and the order of the channel. It runs one rank op by
// op, as a clock would, and lets the channel start what is most urgent among what has room. All it issues during an op
// is triggered by the end of the op before, so that triggers never fall along the channel, which therefore never stands
// still.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/select.h"

namespace weft {

struct DecodeOptions {
  enum class Reductions : std::uint8_t { when_free, first, last };  // beside a gather that could start as well

  bool eager = false;  // gathers start as soon as there is room, not when they have to
  Reductions reductions = Reductions::when_free;
  bool overtake = true;  // a gather that has room may start before one that is needed earlier and has none
  bool bridge = true;    // what was not meant to stay does where, once its gather is due, there is room all the way
  int extend = 3;        // ops by which triggers move forward and waits back into room that is left

  // Seconds by which single gathers (by the read that they are for) and reductions (by the last add) are more urgent
  // than they seem; empty: none.
  std::span<const float> read_urgency = {}, add_urgency = {};
  // Ops after its last add before which compute waits for a reduction, though its room is not needed yet: gathers may
  // take it then. Empty, or 0: when its room is needed.
  std::span<const float> add_patience = {};
};

class TimingDecoder {
 public:
  // The rank and its table must outlive it.
  TimingDecoder(const TimingRank& rank, const TimingTable& table);

  // `ends`: when each op of the rank is expected to end; what is urgent is read off it.
  void begin(const TimingChoice& choice, std::span<const double> ends, const DecodeOptions& options);
  // All ops in order. `ready`: when the producer's data is there. Returns when the op ends.
  double run_op(int op, double ready);
  TimingRankPlan finish();

 private:
  enum class State : std::uint8_t { waiting, issued, merged };
  // An interval of residency.
  struct Interval {
    int unit = 0, need = 0, until = 0;
    int previous = -1;  // of the same unit
    int root = 0;       // the interval it was merged into, else itself
    bool from_island = false;
    bool apart = false;  // from the one before
    State state = State::waiting;
    int after = -1;
    int blocked_at = 0;  // where there was no room when it was last looked at
    double urgency = 0;
    double seconds = 0, latest = 0;  // latest start that nothing waits for
    double arrives = 0;
  };
  struct Gradient {
    int unit = 0, first = 0, last = 0, wait = 0;
    double urgency = 0;
    int wait_by = 0;  // 0: when its room is needed
    int next = -1;    // of the same unit
    bool merged = false;
  };
  // A gradient after its last add, until its reduction has ended.
  struct Held {
    int gradient = 0;
    bool issued = false;
    double end = 0;
    int reserved_to = 0;
  };

  void make_intervals(const TimingChoice& choice);
  void make_gradients(const TimingChoice& choice);
  std::int64_t parameter_bytes(int interval) const;
  std::int64_t gradient_bytes(int gradient) const;
  void reserve(int first, int last, std::int64_t bytes);
  // The first op of first .. last without room, or -1.
  int find_full(int first, int last, std::int64_t bytes) const;
  void reserve_island(Interval& interval);
  void release_island(const Interval& interval);
  bool has_room(Interval& interval, int first, int last, std::int64_t bytes);
  // Lets the interval before go on instead, where that has room all the way.
  bool try_merge(int index);
  void merge(int index);
  void issue_gather(int index, int op);
  void issue_reduction(Held& held, int op);
  void release(int op);
  double settle_gradients(int op);
  bool issue_optional(int op, double end);
  bool may_start(Interval& interval, int index, int op);
  int find_gather(int op, double end);
  bool is_due(const Interval& interval, double end) const;
  // In the plan that has come out, into room that is left.
  void merge_late();
  void extend();

  const TimingRank& rank_;
  const TimingTable& table_;
  DecodeOptions options_;
  std::span<const double> ends_;
  std::vector<std::int64_t> load_;  // reserved bytes by op
  std::vector<Interval> intervals_;
  std::vector<Gradient> gradients_;
  std::vector<int> gradients_by_last_;
  std::vector<TimedCollective> channel_;   // indices into intervals_ and gradients_
  std::deque<Held> held_;                  // in the order of the channel, then by urgency those not issued
  std::size_t issued_ = 0;                 // of held_
  int next_need_ = 0, first_waiting_ = 0;  // of intervals_
  std::size_t next_last_ = 0;              // of gradients_by_last_
  double last_end_ = 0, channel_free_ = 0, shift_ = 0;
};

}  // namespace weft
