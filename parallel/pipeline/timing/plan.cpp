#include "parallel/pipeline/timing/plan.h"

#include <numeric>

namespace weft {

std::vector<std::int64_t> reserved_bytes(const TimingRank& rank, const TimingRankPlan& plan) {
  std::vector<std::int64_t> change(rank.ops.size() + 1);
  const auto reserve = [&change](int first, int last, std::int64_t bytes) {
    change[first] += bytes;
    change[last + 1] -= bytes;
  };
  for (const TimedGather& gather : plan.gathers) {
    reserve(gather.after + 1, gather.until, rank.units[gather.unit].parameter_bytes);
  }
  for (const TimedReduction& reduction : plan.reductions) {
    reserve(reduction.first, reduction.wait - 1, rank.units[reduction.unit].gradient_bytes);
  }
  std::vector<std::int64_t> reserved;
  reserved.reserve(rank.ops.size());
  std::int64_t bytes = 0;
  for (std::size_t q = 0; q < rank.ops.size(); ++q) {
    bytes += change[q];
    reserved.push_back(bytes + rank.ops[q].activation_bytes);
  }
  return reserved;
}

std::int64_t reserved_byte_steps(const TimingProblem& problem, std::span<const TimingRankPlan> plans) {
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < plans.size(); ++r) {
    const std::vector<std::int64_t> bytes = reserved_bytes(problem.ranks[r], plans[r]);
    sum = std::accumulate(bytes.begin(), bytes.end(), sum);
  }
  return sum;
}

}  // namespace weft
