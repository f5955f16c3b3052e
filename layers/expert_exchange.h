// Dropless dispatch over an expert group: rows sorted by expert travel to the rank that holds their expert and back.
// Experts are dealt in equal runs: rank r of the group holds experts [r * n, (r + 1) * n).
#pragma once

#include <vector>

#include "layers/segment.h"

namespace weft {

// Who sends how many rows to whom in one microbatch. Any count may be zero.
struct ExchangePlan {
  std::vector<std::int64_t> send_rows, receive_rows;  // by rank of the group
  std::vector<std::int64_t> expert_rows;              // by expert of this rank
  // Rows arrive by source, then expert; experts compute on runs by expert, then source. One block a (source, expert).
  std::vector<std::int64_t> arrived_at, grouped_at, block_rows;

  std::int64_t sent() const;
  std::int64_t received() const;
};

// `counts[e]`: rows of this rank for expert e, over all experts. Collective over the expert group. Throws Error
// (failure) when the number of experts is not a multiple of the group's size.
ExchangePlan plan_exchange(LayerContext& context, std::span<const std::int64_t> counts);

// [sent, hidden] by expert -> [received, hidden] by expert of this rank. `bound_rows` is the most that can ever arrive,
// so that the block fits every microbatch.
Tensor dispatch_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows);
// The way back: [received, hidden] -> [sent, hidden] in the order in which dispatch_rows took them.
Tensor return_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows);

}  // namespace weft
