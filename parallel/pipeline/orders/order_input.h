// The orders of the table (orders.cpp), their checks of counts and their common parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// Most actions of an order with its messages, about 120 bytes each: a longer list could exhaust the memory.
inline constexpr std::int64_t most_actions = 32'000'000;

// Throws Error (request) unless `microbatches` fits. The message says `why`, and names the nearest counts that fit: one
// below, if there is one, and one above.
void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits);

// Microbatches per group: `input.microbatch_group`. If that is 0, all of them for one chunk, in which none returns to
// rank 0. For several, as in PyTorch, max(1, microbatches / ranks) equal groups. A group shorter than the ranks would
// finish its chunk before its first microbatch returns to rank 0. So no group, the last one included, may be shorter,
// except a single group of all microbatches. Throws Error (request) naming the nearest counts, and the group, that
// work.
int microbatch_group(std::string_view schedule, const OrderInput& input);

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
RankLists zb1p_order(const OrderInput& input);
RankLists zbv_order(const OrderInput& input);
RankLists v_half_order(const OrderInput& input);
RankLists v_min_order(const OrderInput& input);
RankLists dualpipev_order(const OrderInput& input);

}  // namespace weft
