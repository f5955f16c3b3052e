// Reshard timing as a problem of its own: what a rank computes in which order, what each piece reads and adds to, how
// long everything takes and how many bytes there are. It knows neither actions nor transformers. solve_timing answers
// it (timing/solve.h) with a TimingPlan (timing/plan.h).
//
// Positions count the ops of a rank. Bytes are reserved by position, never by time, so that a plan's peak holds for any
// durations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

struct TimingUnit {
  std::int64_t parameter_bytes = 0;  // gathered
  std::int64_t gradient_bytes = 0;   // unsharded accumulator; 0: frozen, what adds to it is ignored
  double gather_seconds = 0, reduce_seconds = 0;
  // A gather inside an island, from the parts that were left there after a forward. No bytes: there is none.
  double island_gather_seconds = 0;
  std::int64_t island_bytes = 0;
};

// A piece of compute. Its units are ranges of the lists of its rank, each unit at most once.
struct TimingOp {
  int first_read = 0, reads = 0;  // of TimingRank::read_units; a weight gradient reads none
  int first_add = 0, adds = 0;    // of TimingRank::added_units
  double seconds = 0;
  // Neither gathered parameters nor gradients, while it runs. Between two ops no more may live than in either.
  std::int64_t activation_bytes = 0;
  int producer_rank = -1, producer_op = 0;  // what it waits for besides its rank's previous op; -1: nothing
  double transfer_seconds = 0;              // from the producer's end
  int stage = 0, microbatch = 0;
  bool forward = false;
};

struct TimingRank {
  std::vector<TimingUnit> units;
  std::vector<TimingOp> ops;
  std::vector<int> read_units, added_units;
  std::int64_t budget = 0;  // of activations, gathered parameters and gradients together

  std::span<const int> reads_of(const TimingOp& op) const {
    return std::span(read_units).subspan(static_cast<std::size_t>(op.first_read), static_cast<std::size_t>(op.reads));
  }
  std::span<const int> adds_of(const TimingOp& op) const {
    return std::span(added_units).subspan(static_cast<std::size_t>(op.first_add), static_cast<std::size_t>(op.adds));
  }
};

struct TimingProblem {
  std::vector<TimingRank> ranks;
};

// What a rank cannot do without at its worst op: activations, the units it reads, and the gradients it adds to; with
// `pin_reductions` every gradient from the first op that adds to it to the last. Some plan does with that.
std::int64_t smallest_budget(const TimingRank& rank, bool pin_reductions);

// Throws Error (failure) where an index points nowhere or a duration is negative.
void check_timing_problem(const TimingProblem& problem);

}  // namespace weft
