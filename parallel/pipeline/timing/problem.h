// Reshard timing as a problem of its own. It has the ops of each rank in order, the units that each op reads and adds
// to, durations and bytes. It knows neither actions nor transformers. solve_timing (timing/solve.h) answers it with a
// TimingPlan (timing/plan.h).
//
// Positions count the ops of a rank. Bytes are reserved by position, never by time, so that a plan's peak holds for any
// durations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

struct TimingUnit {
  std::int64_t parameter_bytes = 0;  // gathered parameters
  std::int64_t gradient_bytes = 0;   // unsharded accumulator; 0: frozen, additions are ignored
  double gather_seconds = 0, reduce_seconds = 0;
};

// A piece of compute. Its units are ranges of its rank's lists, each unit at most once.
struct TimingOp {
  int first_read = 0, reads = 0;  // range of TimingRank::read_units; a weight gradient reads none
  int first_add = 0, adds = 0;    // range of TimingRank::added_units
  double seconds = 0;
  // Bytes alive while the op runs, without gathered parameters and gradients. Between two ops no more than in either
  // may be alive.
  std::int64_t activation_bytes = 0;
  // The op waits for it and for its rank's previous op; -1: none. A producer on the op's own rank passes its data over
  // the exchange lane of the rank. The lane takes one transfer after another, in the order of the producers.
  int producer_rank = -1, producer_op = 0;
  double transfer_seconds = 0;  // from the producer's end, or the end of the transfer before
  double seconds_before = 0;    // of the op, before it needs what is transferred
  int stage = 0;
};

struct TimingRank {
  std::vector<TimingUnit> units;
  std::vector<TimingOp> ops;
  std::vector<int> read_units, added_units;
  std::int64_t budget = 0;  // bytes of activations, gathered parameters and gradients together

  std::span<const int> reads_of(const TimingOp& op) const {
    return std::span(read_units).subspan(op.first_read, op.reads);
  }
  std::span<const int> adds_of(const TimingOp& op) const {
    return std::span(added_units).subspan(op.first_add, op.adds);
  }
};

struct TimingProblem {
  std::vector<TimingRank> ranks;
};

// One unit read, or added to, by one op.
struct TimingUse {
  int unit = 0, op = 0;
  int previous = -1, next = -1;  // uses of the same unit; -1: none
};

// The uses of every unit along one rank, linked, for selection and decoding. Flat, and built once per problem.
struct TimingTable {
  std::vector<TimingUse> reads, adds;  // in the order of ops; adds without frozen units
  std::vector<std::int64_t> core;      // by op: bytes that every plan needs
};

// With `pin_reductions` a gradient stays from its first add to its last, as if every op in between added to it.
TimingTable timing_table(const TimingRank& rank, bool pin_reductions);

// The smallest budget in bytes with a plan. At the worst op of the rank, it holds activations, the units that the op
// reads, and the gradients that it adds to. With `pin_reductions`, every gradient from the first op that adds to it to
// the last.
std::int64_t smallest_budget(const TimingRank& rank, bool pin_reductions);

}  // namespace weft
