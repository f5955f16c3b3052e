// The orders of the table (orders.cpp), their checks of counts and their common parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// Most actions of an order with its messages, about 120 bytes each: a longer list could exhaust the memory.
inline constexpr std::int64_t most_actions = 32'000'000;

// Throws Error (request) if there is no rank, chunk or microbatch, or if the schedule's row of the table does not allow
// the chunks. So it does if a program would exceed most_actions, or if a group is set but the schedule takes no groups.
void require_counts(const Schedule& schedule, const OrderInput& input);

// Throws Error (request) unless `microbatches` fits. The message says `why`, and names the nearest counts that fit: one
// below, if there is one, and one above.
void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits);

inline Action stage_action(Op op, int stage, int microbatch) {
  return {.op = op, .stage = stage, .microbatch = microbatch};
}

// The lists of all ranks, made one by one by `list(rank)`.
template <typename List>
RankLists on_each_rank(const OrderInput& input, List list) {
  RankLists ranks;
  for (int rank = 0; rank < input.ranks; ++rank) ranks.push_back(list(rank));
  return ranks;
}

RankLists gpipe_order(const OrderInput& input);
RankLists one_f_one_b_order(const OrderInput& input);
RankLists interleaved_order(const OrderInput& input);
RankLists combined_1f1b_order(const OrderInput& input);
RankLists looped_bfs_order(const OrderInput& input);
RankLists zb_h1_order(const OrderInput& input);
RankLists zb1p_order(const OrderInput& input);
RankLists zbv_order(const OrderInput& input);
RankLists v_half_order(const OrderInput& input);
RankLists v_min_order(const OrderInput& input);
RankLists dualpipev_order(const OrderInput& input);

}  // namespace weft
