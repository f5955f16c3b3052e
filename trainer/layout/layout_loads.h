// The loads of a pipeline's ranks under a split of the blocks. Costs are whole numbers of a quantum, so sums are equal
// in any order of their terms.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "trainer/layout/automatic_layout.h"

namespace weft {

// The largest value of each field over ranks or stages.
struct LayoutScore {
  std::int64_t rank_cost = 0, stage_cost = 0;
  std::int64_t needed_bytes = 0;  // least bytes of a rank
  std::int64_t bytes = 0;         // bytes of a rank with everything there at once
};
// Bounds without effect: the largest number means no bound.
constexpr LayoutScore unlimited = {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max(),
                                   std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()};

class LayoutLoads {
 public:
  // Both arguments outlive this object.
  LayoutLoads(const LayoutItems& items, const ScheduleResidents& ranks);

  int stages() const { return ranks_.stages(); }
  int ranks() const { return ranks_.ranks(); }
  int blocks() const { return static_cast<int>(items_.blocks.size()); }
  int rank_of(int stage) const { return ranks_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  const std::vector<int>& stages_of(int rank) const { return stages_of_[static_cast<std::size_t>(rank)]; }

  // The cost of blocks [begin, end) on a stage, with the embedding or the head that stands there.
  std::int64_t cost(int stage, int begin, int end) const;
  std::int64_t cost(int stage, std::span<const int> bounds) const {
    const auto s = static_cast<std::size_t>(stage);
    return cost(stage, bounds[s], bounds[s + 1]);
  }
  // The cost of all blocks before `block`.
  std::int64_t cost_until(int block) const { return until_[static_cast<std::size_t>(block)].cost; }
  std::int64_t total_cost() const { return cost_until(blocks()) + embedding_.cost + head_.cost; }
  std::int64_t embedding_cost() const { return embedding_.cost; }
  std::int64_t head_cost() const { return head_.cost; }

  // `bounds`: stage s holds the blocks [bounds[s], bounds[s + 1]).
  std::int64_t rank_cost(int rank, std::span<const int> bounds) const;
  std::int64_t needed_bytes(int rank, std::span<const int> bounds) const;
  std::int64_t bytes(int rank, std::span<const int> bounds) const;
  LayoutScore score(std::span<const int> bounds) const;

 private:
  struct Sums {
    std::int64_t cost = 0, resident = 0, activation = 0, always = 0, kept = 0;
    Sums plus(const Sums& other, int sign = 1) const;
  };
  Sums sums(const LayoutItem& item) const;
  Sums on_stage(int stage, std::span<const int> bounds) const;
  std::int64_t passing(int stage, std::span<const int> bounds) const;
  // The sum at a rank's fullest instant, if a microbatch takes `field` on each stage.
  std::int64_t fullest(int rank, std::span<const int> bounds, std::int64_t Sums::*field) const;

  const LayoutItems& items_;
  const ScheduleResidents& ranks_;
  double quanta_ = 1.0;  // in one unit of cost
  Sums embedding_, head_;
  std::vector<Sums> until_;  // of the blocks before each block
  std::vector<std::vector<int>> stages_of_;
};

}  // namespace weft
