// Assigns blocks to stages if a rank runs several, by the order of automatic_layout.h; bytes of the fullest rank count
// to a thousandth.
//
// Cuts between stages are chosen rank by rank. In a V placement, a rank's stages lie around those of the ranks before,
// so few cuts determine the rest. The stages of a looped rank lie apart, and more cuts must be remembered. The work is
// bounded: it starts from the best split by stages, improved by moving single blocks. A search that uses up its work
// counts as one without a result. So the result is the best for small models, and the best found for large ones.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
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

// The loads of a pipeline's ranks under a split of the blocks. Costs are whole numbers of a quantum, so sums are equal
// in any order of their terms.
class LayoutLoads {
 public:
  // Both arguments outlive this object.
  LayoutLoads(const LayoutItems& items, const ScheduleResidents& ranks);

  int stages() const { return ranks_.stages(); }
  int ranks() const { return ranks_.ranks(); }
  int blocks() const { return static_cast<int>(items_.blocks.size()); }
  int rank_of(int stage) const { return ranks_.rank_of_stage[stage]; }
  const std::vector<int>& stages_of(int rank) const { return stages_of_[rank]; }

  // The cost of blocks [begin, end) on a stage, with the embedding or the head that stands there.
  std::int64_t cost(int stage, int begin, int end) const;
  std::int64_t cost(int stage, std::span<const int> bounds) const {
    return cost(stage, bounds[stage], bounds[stage + 1]);
  }
  // The cost of all blocks before `block`.
  std::int64_t cost_until(int block) const { return until_[block].cost; }
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

// A split whose costs are decided: `caps` are its costs, and the bytes that a rank may need.
struct CheapestSplit {
  std::vector<int> bounds = {};
  LayoutScore caps = unlimited;
  std::int64_t work = 0;  // left of the bounded work, in cut positions
};

// `starts`: splits, each as the first block of each stage and the number of blocks. The first has a block on every
// stage, the second the head alone on the last. Returns a split of the first form, unless the second has a cheaper rank
// or stage. Ranks need at most `limit` bytes or, if no such split was found, the least bytes that were found. Without a
// limit the result depends on costs alone.
CheapestSplit cheapest_split(const LayoutLoads& loads, std::int64_t limit, const std::vector<std::vector<int>>& starts);
// The cheapest splits without a limit that were found before. Dealing to several stages a rank takes up to a tenth of a
// second, and many configurations of a search differ in bytes alone. Thread-safe.
class KnownSplits {
 public:
  CheapestSplit find_or(const LayoutLoads& loads, const std::function<CheapestSplit()>& find);

 private:
  std::mutex mutex_;
  std::map<std::vector<std::int64_t>, CheapestSplit> splits_;  // by the ranks of stages, and by costs
};

// Bounds with the same costs, and the fewest bytes of the fullest rank that the work left finds.
std::vector<int> with_fewest_bytes(const LayoutLoads& loads, CheapestSplit split);

// Whether blocks can be assigned so that no rank and no stage exceeds given caps. A depth-first search over the cuts
// between stages, rank by rank. Equal positions of the cuts beside the remaining ranks are searched only once.
class ChunkedLayoutSearch {
 public:
  // `start`: a split. If its last stage has no blocks, that stage stays so; all other stages get at least one block.
  // `loads` outlives the search.
  ChunkedLayoutSearch(const LayoutLoads& loads, const std::vector<int>& start);

  // A split within `caps`, as bounds. Without one, `exceeded` is a lower bound of the field `minimized` over all splits
  // that keep the other caps. It is the largest number if none does.
  struct Answer {
    std::optional<std::vector<int>> bounds;
    std::int64_t exceeded = 0;
    bool finished = true;  // false: the work was used up, so neither field proves that there is no split
  };
  // `work`: number of cut positions that may be tried; the tried ones are subtracted.
  Answer find(const LayoutScore& caps, std::int64_t LayoutScore::*minimized, std::int64_t& work);

 private:
  // The cuts are chosen in a fixed order. `before` and `behind` are the nearest cuts fixed earlier.
  struct Cut {
    int bound = 0, before = 0, behind = 0;
    std::vector<int> completed;             // ranks with all cuts of their stages fixed by this cut
    std::vector<int> frontier;              // fixed cuts beside stages of ranks that are not complete then
    std::vector<std::vector<int>> cut_out;  // for the ranks of both stages beside it: stages with both cuts fixed
  };
  // The side of a cut with too much at a position; `no`: one rank has the stages on both sides.
  enum class Verdict : std::uint8_t { fits, too_much_before, too_much_behind, no };

  bool place(std::size_t index, std::int64_t completed_cost, int completed_ranks);
  Verdict judge(const Cut& cut);
  bool complete(const Cut& cut, std::int64_t& completed_cost, int& completed_ranks);
  int even_position(const Cut& cut, int least, int most) const;
  std::int64_t cost_between(int before, int behind) const;
  bool within(std::int64_t value, std::int64_t LayoutScore::*field);
  std::string key(std::size_t index) const;

  const LayoutLoads& loads_;
  std::vector<int> bounds_;
  std::vector<Cut> cuts_;
  // Stages and ranks that are complete before any cut is chosen.
  std::vector<int> cut_out_at_once_;
  Cut complete_at_once_;

  LayoutScore caps_ = unlimited;
  std::int64_t LayoutScore::*minimized_ = &LayoutScore::rank_cost;
  std::int64_t exceeded_ = 0;
  std::int64_t work_ = 0;
  bool too_much_left_ = false;  // set by complete(): the other ranks have too much
  std::unordered_set<std::string> dead_ends_;
};

}  // namespace weft
