// Bytes of a rank beside those that it holds all step. They are the allocations and releases of its list, and their
// sums in the order of the list. simulation/memory_curve.h sums them in the order of time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "parallel/pipeline/program/pieces.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"

namespace weft {

// An allocation (bytes above 0) or a release (below 0) of an action. By bucket these are gathered parameters and
// secondary shards; accumulators and reduction inputs in flight; the copies and results of reductions; bytes that
// segments keep. Kept bytes are activations, or a checkpoint until R, then the bytes pending for the weight gradient.
// In a forward-only program they are activations while their segment runs.
struct LiveChange {
  enum class When : std::uint8_t {
    start,     // of the action
    end,       // of the action
    computed,  // the compute in front of the action has ended
    reduced,   // the same, and `reduction` has ended
  };

  Bucket bucket = Bucket::activations;
  std::int64_t bytes = 0;
  When when = When::start;
  std::size_t reduction = 0;             // position in the list
  std::optional<std::size_t> unit = {};  // whose bytes they are; absent for activations
};

// The one model of what a list allocates and releases. Its state is sets, not counters: a faulty list that gathers
// twice or drops absent units must not distort the sum.
class LiveWalk {
 public:
  // `program` must outlive the walk.
  LiveWalk(const Program& program, int pipeline_rank);

  // The changes of the next action, in order; each is an instant of its own. Valid until the next call. A malformed
  // action has none.
  std::span<const LiveChange> next();

 private:
  // The bytes that a piece keeps of a microbatch.
  enum class Kept : std::uint8_t { nothing, checkpoint, activations, pending };
  // The input of a reduction that the pool holds.
  struct Input {
    std::size_t unit = 0;
    int number = 0;             // among the unit's reductions, from 1
    std::size_t reduction = 0;  // position in the list
    Bucket bucket = Bucket::communication;
    std::int64_t bytes = 0;
  };

  void compute(const Action& action);
  void gather(std::size_t unit, Op op);
  void reshard(std::size_t unit, Op op);
  void reduce(std::size_t unit);
  void give_up_until(int inputs);
  void give_up_through(std::size_t unit);
  void keep(std::size_t piece, int microbatch, Kept kept, LiveChange::When when);
  Kept& kept(std::size_t piece, int microbatch);
  std::int64_t bytes_of(std::size_t piece, Kept kept) const;
  bool in_region(std::size_t piece) const;
  void move_kept(const Action& action);
  void change(Bucket bucket, std::int64_t bytes, LiveChange::When when, std::optional<std::size_t> unit = {},
              std::size_t reduction = 0);

  const Program& program_;
  const std::vector<Action>& actions_;
  PieceTable pieces_;
  std::size_t at_ = 0;                                     // position of the next action
  std::vector<LiveChange> changes_;                        // of the last action
  std::vector<bool> gathered_, secondary_, accumulating_;  // by unit
  std::vector<int> reductions_, waits_;                    // so far, by unit
  std::deque<Input> in_flight_;                            // oldest first
  std::vector<Kept> kept_;                                 // by piece, then microbatch
  std::vector<bool> away_;  // by piece, then microbatch: whether kept bytes are on the host
};

// The largest sum over a rank's list, and its position.
struct TransientPeak {
  BucketBytes buckets = {};
  std::int64_t bytes = 0;
  std::size_t index = 0;
};
TransientPeak transient_peak(const Program& program, int pipeline_rank);

struct LiveAction {
  BucketBytes after = {};       // after the action
  BucketBytes most = {};        // maximum of each bucket during the action, each at its own instant
  std::int64_t most_total = 0;  // maximum of their sum

  bool operator==(const LiveAction&) const = default;
};

// By position in the list of a pipeline rank.
std::vector<LiveAction> live_bytes(const Program& program, int pipeline_rank);

// Peaks and integrals over a rank's list. The list's logical clock ticks once for each computing action (is_compute);
// a part of a cut one is an action of its own. Byte-steps are bytes times the computing actions during which they live.
// Bytes that live inside another action alone, as the result of a reduction, have a peak but no byte-steps.
struct LiveIntegral {
  BucketBytes peak = {};  // of each bucket, each at its own instant
  BucketBytes byte_steps = {};
  std::vector<BucketBytes> unit_byte_steps = {};  // by unit of the program; their sum is all but the activations
};
LiveIntegral live_integral(const Program& program, int pipeline_rank);

}  // namespace weft
