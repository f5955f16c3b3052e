// Orders: when each stage runs forward and backward of each microbatch. Each order is one pure function and one row of
// the table. A comment at the function names its source.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/action.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// The actions of every rank.
using RankLists = std::vector<std::vector<Action>>;

struct OrderInput {
  int ranks = 1;
  int chunks = 1;  // stages per rank
  int microbatches = 1;
  // Microbatches that run through one chunk before the next chunk; 0: equal groups, as short as the ranks allow
  // (order_1f1b.cpp). Only for schedules with takes_groups.
  int microbatch_group = 0;
};

struct Schedule {
  std::string_view name;
  std::string_view summary;
  RankLists (*lists)(const OrderInput& input);  // the order of counts that were checked
  Placement placement = Placement::looped;      // the placement of stages that the order needs
  int least_chunks = 1, most_chunks = 1;        // stages per rank it can order; most_chunks 0: no limit
  bool takes_groups = false;
  bool parts = false;       // computes weight gradients apart from input gradients
  bool overlaps = false;    // has overlapped pairs (overlap.h)
  int least_of_a_rank = 0;  // microbatches of a step, times the ranks

  constexpr bool takes_chunks(int chunks) const {
    return chunks >= least_chunks && (most_chunks == 0 || chunks <= most_chunks);
  }
  // Stages per rank to show the schedule with: two where it takes them.
  constexpr int shown_chunks() const { return takes_chunks(2) ? 2 : least_chunks; }
  // Throws Error (request) for counts that the schedule cannot order, or whose program would exceed most_actions.
  void require_counts(const OrderInput& input) const;
  // Stage-level compute actions of every rank. Throws as require_counts().
  RankLists order(const OrderInput& input) const;
};

// In the order of the table. A position in it is also the look of the schedule's marks (tools/picture/pareto_svg.h).
std::span<const Schedule> schedules();
// What stands in place of a name (order_csv.h), in messages on unknown names.
inline constexpr std::string_view own_schedule_text = "; a schedule of your own is the path of a .csv file";
// Throws Error (request) naming the known schedules.
const Schedule& find_schedule(std::string_view name);

// The most chunks of which a rank with these actions keeps activations: from F to B, or to W where the backward is
// split.
int chunks_in_flight(std::span<const Action> actions);

// Forwards alone, for any placement: `stage_ranks` has the pipeline rank of every stage, of `ranks` ranks. It is no
// schedule of a training step and hence not in the table. Of the forwards with data, a rank runs the one of the deepest
// stage. No more microbatches are then in flight than the ranks need.
RankLists forward_order(std::span<const int> stage_ranks, int ranks, int microbatches);

}  // namespace weft
