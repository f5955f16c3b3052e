// Candidates of solve_timing: how a plan comes from a view of the problem, and how one is improved.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/timing/clock.h"
#include "parallel/pipeline/timing/decode.h"
#include "parallel/pipeline/timing/select.h"
#include "parallel/pipeline/timing/solve.h"

namespace weft {

// What selection and decoding of a rank are told.
struct TimingView {
  double lead = 1, reduction_weight = 1;
  double headroom = 0;  // of the rank's largest unit
  DecodeOptions decode = {};
  std::vector<float> read_weights = {}, add_weights = {};                     // empty: 1
  std::vector<float> read_urgency = {}, add_urgency = {}, add_patience = {};  // empty: 0
};

struct TimingCandidate {
  std::vector<TimingRankPlan> plans;
  std::vector<TimingChannel> channels;
  std::vector<double> ends;  // of all ops
  std::vector<double> rank_ends;
  double makespan = 0;
  double score = 0;  // the makespan, and very little of what it does not show yet
};

// Repeatable on every machine: neither distributions nor engines of the library are.
class TimingRandom {
 public:
  explicit TimingRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  int below(int count) { return static_cast<int>(next() % static_cast<std::uint64_t>(count)); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

class TimingSearch {
 public:
  TimingSearch(const TimingProblem& problem, const SolveOptions& options);

  double compute_makespan() const { return compute_makespan_; }
  double lower_bound() const { return lower_bound_; }
  bool at_bound(double makespan) const { return makespan <= lower_bound_ * (1 + 1e-12); }

  // All ranks under one view; `ends` when ops are expected to end.
  TimingCandidate build(const TimingView& view, const std::vector<double>& ends);
  // Without collectives.
  const std::vector<double>& compute_ends() const { return compute_ends_; }
  // Of plans that came from elsewhere.
  TimingCandidate evaluate(std::vector<TimingRankPlan> plans) const;
  // One rank after the other under views that differ a little, as long as that is no worse. Returns the steps taken.
  int improve(TimingCandidate& best, const TimingView& view, std::int64_t work);

 private:
  TimingChoice select(int rank, const TimingView& view, const std::vector<double>& ends) const;
  std::span<const double> of_rank(int rank, const std::vector<double>& ends) const;
  TimingRankPlan decode_alone(int rank, const TimingView& view, const std::vector<double>& ends);
  DecodeOptions decode_options(const TimingView& view) const;
  void rate(TimingCandidate& candidate) const;
  void vary(int rank, TimingView& view);
  double find_lower_bound() const;

  const TimingProblem& problem_;
  const SolveOptions& options_;
  TimingClock clock_;
  std::vector<TimingTable> tables_;
  std::vector<TimingDecoder> decoders_;
  std::vector<double> compute_ends_;
  double compute_makespan_ = 0, lower_bound_ = 0;
  TimingRandom random_{0x5eed};
};

}  // namespace weft
