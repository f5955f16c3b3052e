#include "trainer/rank/compute_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "parallel/runtime/medians.h"

namespace weft {

bool is_comparable(const Program& program, const ProgramSegment& segment) {
  if (!segment.collectives.empty()) return false;
  return std::ranges::none_of(segment.units, [&](int unit) { return program.units[unit].family == Family::experts; });
}

ComputeTimes::ComputeTimes(const Program& program, std::span<const Action> actions, Stream& compute)
    : actions_(actions), compute_(compute), microbatches_(program.microbatches) {
  std::map<std::pair<int, Op>, std::size_t> kinds;
  for (const Action& action : actions) {
    std::optional<std::size_t>& kind = kind_of_.emplace_back();
    if (!is_compute(action.op) || action.part.count > 1) continue;
    if (!is_comparable(program, program.segments[*action.segment])) continue;
    kind = kinds.try_emplace({*action.segment, action.op}, kinds.size()).first->second;
    kinds_.resize(kinds.size());
    ++kinds_[*kind].a_step;
  }
}

bool ComputeTimes::times(std::size_t action) const {
  return steps_ > warm_up && kind_of_[action] &&
         actions_[action].microbatch == static_cast<int>(steps_ % microbatches_);
}

void ComputeTimes::begin_step() {
  ++steps_;
  timed_.clear();
}

void ComputeTimes::begin(std::size_t action) {
  if (times(action)) timed_.push_back({*kind_of_[action], compute_.record_time(), nullptr});
}

void ComputeTimes::end(std::size_t action) {
  if (times(action)) timed_.back().end = compute_.record_time();
}

void ComputeTimes::end_step() {
  for (const TimedCompute& timed : timed_) {
    timed.end->synchronize();
    const double seconds = timed.end->seconds_since(*timed.begin);
    std::optional<double>& least = kinds_[timed.kind].least;
    least = std::min(least.value_or(seconds), seconds);
  }
  timed_.clear();
}

double ComputeTimes::seconds() const {
  double seconds = 0.0;
  for (const ComputeKind& kind : kinds_) seconds += kind.least.value_or(0.0) * kind.a_step;
  return seconds;
}

std::vector<RankCompute> compare_ranks(const Mesh& mesh, std::span<const double> seconds) {
  if (mesh.degrees().stage_ranks() == 1 || std::ranges::max(seconds) <= 0.0) return {};
  std::vector<RankCompute> ranks;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    std::vector<double> others;
    for (const int other : mesh.group_of(Group::tokens, rank)) {
      if (other != rank) others.push_back(seconds[other]);
    }
    const double own = seconds[rank];
    const double usual = others.empty() ? 0.0 : median_of(std::move(others));
    ranks.push_back({own, usual > 0.0 ? own / usual : 1.0});
  }
  return ranks;
}

std::string slow_ranks_text(std::span<const RankCompute> ranks) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].is_slow()) continue;
    text += fmt::format("{}rank {} computes {:.0f} % longer than the others of its stage", text.empty() ? "" : ", ",
                        rank, 100.0 * (ranks[rank].over_peers - 1.0));
  }
  return text;
}

}  // namespace weft
