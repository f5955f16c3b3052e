// Whether blocks can be dealt so that no rank and no stage has more than so much: depth first over the cuts between
// stages, rank by rank, without coming twice to what the cuts beside the ranks that are left have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "trainer/layout/layout_loads.h"

namespace weft {

class RankSearch {
 public:
  // `start`: a split, whose last stage stays without blocks where it has none; all other stages get one at least.
  // `loads` outlives the search.
  RankSearch(const LayoutLoads& loads, const std::vector<int>& start);

  // A split within `caps`, as bounds. Without one, `exceeded` is the least that the field `minimized` has in any split
  // that keeps the other caps, or less; the largest number where none does.
  struct Answer {
    std::optional<std::vector<int>> bounds;
    std::int64_t exceeded = 0;
    bool finished = true;  // otherwise the work was used up, and neither says that there is none
  };
  // `work`: positions of cuts that may be tried; what was is taken off.
  Answer find(const LayoutScore& caps, std::int64_t LayoutScore::*minimized, std::int64_t& work);

 private:
  // The cuts are chosen in one order. `before` and `behind` are the nearest that are fixed by then.
  struct Cut {
    int bound = 0, before = 0, behind = 0;
    std::vector<int> completed;             // ranks whose stages are all cut out by it
    std::vector<int> frontier;              // cuts beside stages of ranks that are not complete then
    std::vector<std::vector<int>> cut_out;  // of the ranks of the two stages beside it: the stages that are cut out
  };
  // What is wrong with a cut at a position: with what lies before it, behind it, or beyond.
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
  // What is there before any cut is chosen.
  std::vector<int> cut_out_at_once_;
  Cut complete_at_once_;

  LayoutScore caps_ = unlimited;
  std::int64_t LayoutScore::*minimized_ = &LayoutScore::rank_cost;
  std::int64_t exceeded_ = 0;
  std::int64_t work_ = 0;
  bool too_much_left_ = false;  // for the ranks that complete() leaves
  std::unordered_set<std::string> dead_ends_;
};

}  // namespace weft
