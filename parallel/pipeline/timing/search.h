// Candidates of solve_timing: how a view of the problem gives a plan, and how a plan is improved.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/timing/clock.h"
#include "parallel/pipeline/timing/decode.h"
#include "parallel/pipeline/timing/solve.h"

namespace weft {

struct TimingCandidate {
  std::vector<TimingRankPlan> plans;
  std::vector<TimingChannel> channels;
  std::vector<double> ends;  // of all ops
  std::vector<double> rank_ends;
  double makespan = 0;
  double score = 0;  // the makespan, plus small weights for the ranks' ends and their channels' work
};

// Repeatable on every machine, unlike the distributions of the standard library.
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

  // A plan of all ranks under one view. `ends`: the expected end of each op, in seconds.
  TimingCandidate build(const TimingView& view, const std::vector<double>& ends);
  // The ends of all ops without collectives, in seconds.
  const std::vector<double>& compute_ends() const { return compute_ends_; }
  // Rates plans that were made elsewhere.
  TimingCandidate evaluate(std::vector<TimingRankPlan> plans) const;
  // Whether `one` is as short as `other`, has its score and reserves fewer byte-steps.
  bool is_leaner(const TimingCandidate& one, const TimingCandidate& other) const;
  // Decodes random ranks anew under slightly varied views. A step that is a little worse may be accepted, but `best`
  // never gets worse. Returns the number of steps.
  int improve(TimingCandidate& best, const TimingView& view, std::int64_t work);

 private:
  // Selects, and begins to decode.
  void begin(int rank, const TimingView& view, const std::vector<double>& ends);
  TimingRankPlan decode_alone(int rank, const TimingView& view, const std::vector<double>& ends);
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
