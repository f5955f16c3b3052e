// Dropless dispatch to experts: rows sorted by expert travel to the rank that holds their expert and back. Experts are
// dealt over the expert group in equal runs: rank r holds experts [r * n, (r + 1) * n). Where experts are split by
// width over an expert-tensor group, each of its ranks needs the rows of all of them, and the way back sums their
// parts.
#pragma once

#include <vector>

#include "layers/segment.h"
#include "parallel/runtime/staging.h"

namespace weft {

// Runs of rows by (source, expert): where they lie when sources follow one another, and when experts do.
struct RowRuns {
  std::vector<std::int64_t> by_source, by_expert, rows;
};

// Who sends how many rows to whom in one microbatch. Any count may be zero.
struct ExchangePlan {
  std::vector<std::int64_t> send_rows, receive_rows;  // by rank of the expert group
  RowRuns received_runs;                              // sources are ranks of the expert group
  std::vector<std::int64_t> gathered_rows;            // by rank of the expert-tensor group
  RowRuns gathered_runs;                              // sources are ranks of the expert-tensor group
  std::vector<std::int64_t> expert_rows;              // by expert of this rank: what it computes

  std::int64_t sent() const;
  std::int64_t received() const;
  std::int64_t gathered() const;
};

// The counts of every rank of both groups on their way to the host, so that it can go on queueing work meanwhile.
class ExpertCounts {
 public:
  // counts [experts, 1] int32: rows of this rank for each expert of the layer. Collective over both groups. Throws
  // Error (failure) when the number of experts is not a multiple of the expert group's size.
  ExpertCounts(LayerContext& context, ConstTensorView counts);

  // Blocks the host until the counts are here: by rank of the expert-tensor group, then of the expert group, then
  // expert.
  std::span<const std::int32_t> wait();

 private:
  std::int64_t experts_;
  Staging host_;
};

// `counts` as ExpertCounts gives them. Pure arithmetic: of the context, only sizes and ranks of the groups are read.
ExchangePlan plan_exchange(const LayerContext& context, std::span<const std::int32_t> counts);

// Rows on their way between the ranks of an expert group. The compute lane does not wait for them until the dispatch is
// finished, and can work on something else meanwhile (the shared expert).
struct RowsUnderWay {
  Tensor leaving, arriving;
  Fence arrived;
};
// [sent, hidden] by expert -> [gathered, hidden] by expert of this rank. `bound_rows` is the most that can ever arrive,
// so that the block fits every microbatch.
RowsUnderWay begin_dispatch(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows);
Tensor finish_dispatch(LayerContext& context, const ExchangePlan& plan, RowsUnderWay rows, std::int64_t bound_rows);
// The way back: [gathered, hidden] -> [sent, hidden] in the order in which begin_dispatch took them, summed over the
// expert-tensor group.
Tensor return_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows);

}  // namespace weft
