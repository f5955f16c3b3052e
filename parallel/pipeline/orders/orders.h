// Orders: which stage runs forward and backward of which microbatch, when. Each is one pure function, one row of the
// table. Where an order comes from stands at its function.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/action.h"
#include "parallel/pipeline/program/placement.h"

namespace weft {

struct OrderInput {
  int ranks = 1;
  int chunks = 1;  // stages per rank
  int microbatches = 1;
  // Through one chunk before the next; 0: equal groups as short as the ranks allow (order_groups.h). Only where
  // Schedule::takes_groups.
  int microbatch_group = 0;
};

struct Schedule {
  std::string_view name;
  std::string_view summary;
  // Stage-level compute actions of every rank.
  std::vector<std::vector<Action>> (*order)(const OrderInput& input);
  Placement placement = Placement::looped;  // where it wants the stages to stand
  int least_chunks = 1, most_chunks = 1;    // stages per rank it can order; most_chunks 0: no limit
  bool takes_groups = false;

  constexpr bool takes_chunks(int chunks) const {
    return chunks >= least_chunks && (most_chunks == 0 || chunks <= most_chunks);
  }
};

std::span<const Schedule> schedules();
// Throws Error (request) naming the known schedules.
const Schedule& find_schedule(std::string_view name);

// Forwards alone, for any placement: `stage_ranks` has the pipeline rank of every stage, of `ranks` ranks. No schedule
// of a training step, hence not in the table. A rank runs, of what is there for it, the stage nearest to the end, so
// that no more microbatches are under way than the ranks need.
std::vector<std::vector<Action>> forward_order(std::span<const int> stage_ranks, int ranks, int microbatches);

std::vector<std::vector<Action>> gpipe_order(const OrderInput& input);
std::vector<std::vector<Action>> one_f_one_b_order(const OrderInput& input);
std::vector<std::vector<Action>> interleaved_order(const OrderInput& input);
std::vector<std::vector<Action>> looped_bfs_order(const OrderInput& input);
std::vector<std::vector<Action>> zb_h1_order(const OrderInput& input);
std::vector<std::vector<Action>> zb1p_order(const OrderInput& input);
std::vector<std::vector<Action>> zbv_order(const OrderInput& input);
std::vector<std::vector<Action>> v_half_order(const OrderInput& input);
std::vector<std::vector<Action>> v_min_order(const OrderInput& input);
std::vector<std::vector<Action>> dualpipev_order(const OrderInput& input);

}  // namespace weft
