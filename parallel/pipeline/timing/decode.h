// The two halves of solving. Selection: which units stay between two uses, and which gradients between two adds, within
// the budget. A sweep along the rank adds up everything that stays. Where the sum is too large, the candidate with the
// least saved channel time per byte and op is dropped.
//
// Decoding: turns residency choices into triggers, waits and the order of the channel. It runs one rank op by op, as a
// clock would. The channel starts the most urgent of the collectives that have room. A collective issued during an op
// is triggered by the end of the op before it. So triggers never fall along the channel, and it never deadlocks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

// `apart`: dropped, and not kept in spare room later either.
enum class Stay : std::uint8_t { apart, dropped, kept };

// The fate of a unit after each read, and of a gradient after each add, until the next one.
struct TimingChoice {
  std::vector<Stay> reads, adds;  // by TimingTable::reads and adds

  bool operator==(const TimingChoice&) const = default;
};

// The parameters of selection and decoding of a rank. Lists are by TimingTable::reads and adds.
struct TimingView {
  enum class Reductions : std::uint8_t { when_free, first, last };  // order, if a gather could start as well

  // Every gap leaves room for `lead` times the transfer that ends (or begins) it, so that transfers run beside compute.
  double lead = 1;
  double reduction_weight = 1;  // weight of a second of reduction, which has no deadline
  double headroom = 0;          // left free at every op, as a multiple of the bytes of the rank's largest unit

  bool eager = false;  // gathers start as soon as there is room, not only when they are due
  Reductions reductions = Reductions::when_free;
  bool overtake = true;  // a gather with room may start before an earlier needed one without room
  bool bridge = true;    // a unit chosen to be dropped stays if, when its gather is due, there is room all the way

  std::vector<float> read_weights = {}, add_weights = {};  // of single gaps, set by the search; empty: 1; 0: apart
  // Seconds that are added to the urgency of single gathers (by the read that they are for) and reductions (by the last
  // add); empty: none.
  std::vector<float> read_urgency = {}, add_urgency = {};
  // Number of ops after a gradient's last add before which compute waits for its reduction even if its room is not
  // needed yet. Gathers may then take the room. Empty, or 0: compute waits when the room is needed.
  std::vector<float> add_patience = {};
};

// `ends`: the expected end of each op of the rank, bubbles included, in seconds.
TimingChoice select_stays(const TimingRank& rank, const TimingTable& table, std::span<const double> ends,
                          const TimingView& view, bool pin_reductions);

class TimingDecoder {
 public:
  // The rank and its table must outlive it.
  TimingDecoder(const TimingRank& rank, const TimingTable& table);

  // `ends`: the expected end of each op of the rank, in seconds; urgency is derived from it. It and the view stay valid
  // until finish().
  void begin(const TimingChoice& choice, std::span<const double> ends, const TimingView& view);
  // Ops must run in order. `ready`: when the op may begin for its producer. Returns the end of the op. All in seconds.
  double run_op(int op, double ready);
  TimingRankPlan finish();

 private:
  enum class State : std::uint8_t { waiting, issued, merged };
  // An interval of residency.
  struct Interval {
    int unit = 0, need = 0, until = 0;
    int previous = -1;   // interval of the same unit
    int root = 0;        // the interval that this one was merged into, else itself
    bool apart = false;  // must not be merged with the previous one
    State state = State::waiting;
    int after = -1;
    int blocked_at = 0;  // op that had no room when last examined
    double urgency = 0;
    double seconds = 0, latest = 0;  // latest start that delays nothing
    double arrives = 0;
  };
  struct Gradient {
    int unit = 0, first = 0, last = 0, wait = 0;
    double urgency = 0;
    int wait_by = 0;  // op; 0: when the room is needed
    int next = -1;    // gradient of the same unit
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
  // The first op of first .. last without room for `bytes`, or -1.
  int find_full(int first, int last, std::int64_t bytes) const;
  bool has_room(Interval& interval, int first, int last, std::int64_t bytes);
  // Extends the previous interval instead of a gather, if there is room all the way.
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
  // Merges intervals and gradients of the finished plan into room that is left.
  void merge_late();
  void extend();

  const TimingRank& rank_;
  const TimingTable& table_;
  const TimingView* view_ = nullptr;
  std::span<const double> ends_;
  std::vector<std::int64_t> load_;  // reserved bytes by op
  std::vector<Interval> intervals_;
  std::vector<Gradient> gradients_;
  std::vector<int> gradients_by_last_;
  std::vector<TimedCollective> channel_;   // indices into intervals_ and gradients_
  std::deque<Held> held_;                  // issued ones in channel order, then the others by urgency
  std::size_t issued_ = 0;                 // number of issued ones in held_
  int next_need_ = 0, first_waiting_ = 0;  // indices into intervals_
  std::size_t next_last_ = 0;              // index into gradients_by_last_
  double last_end_ = 0, channel_free_ = 0, shift_ = 0;
};

}  // namespace weft
