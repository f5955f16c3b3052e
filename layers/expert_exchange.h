// Exchange of the rows of choices: sorted by expert, they are sent to the rank of their expert, and results are sent
// back. The ranks of LayerContext::expert divide experts into equal runs; rank r holds run r. These are all experts, or
// those of a part (token_relay.h). If an expert-tensor group splits experts by width, each of its ranks gathers the
// rows of all of them. On the way back their partial results are summed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "layers/segment.h"
#include "parallel/runtime/staging.h"

namespace weft {

using RowCounts = std::vector<std::int64_t>;  // of rows, each zero or more
std::int64_t sum(const RowCounts& values);
// Of rows with so many columns.
RowCounts elements(RowCounts rows, std::int64_t columns);

// Row counts that a rank sends and receives in one microbatch. Any count may be zero.
struct ExchangePlan {
  std::vector<std::int64_t> send_rows, receive_rows;  // by rank of the expert group
  RowBlocks received_runs;                            // by rank of the expert group, then expert; sorted by expert
  std::vector<std::int64_t> gathered_rows;            // by rank of the expert-tensor group
  RowBlocks gathered_runs;                            // by rank of the expert-tensor group, then expert; sorted alike
  std::vector<std::int64_t> expert_rows;              // by expert of this rank: rows it computes
};

// Asynchronous copy of the row counts of all ranks to the host, which can queue further work until it calls finish() of
// the result. counts [n, 1] int32: rows of this rank for each of n receivers: experts, or parts of them. The ranks are
// those of `groups`, gathered over the first, then over the second; the first divides the receivers. The result is
// int32 in the order rank of the last group, ..., rank of the first, receiver. Collective. Throws Error (failure) if n
// is not a multiple of the first group's size.
std::unique_ptr<Staging> gather_counts(KernelContext& kernels, std::initializer_list<Communicator*> groups,
                                       ConstTensorView counts);

// `counts` of gather_counts for the context's expert and expert-tensor groups. Pure arithmetic: only sizes and ranks of
// the context's groups are read.
ExchangePlan plan_exchange(const LayerContext& context, std::span<const std::int32_t> counts);

// Rows that are ready to leave for other ranks, or in flight. The compute lane waits for them when they are finished
// only, so it can run other work meanwhile: the shared expert, or another microbatch.
struct RowsUnderWay {
  Tensor leaving = {}, arriving = {};
  ConstTensorView source = {};  // the rows that leave, if `leaving` does not hold them; they stay until the arrival
  bool back = false;            // on the way back from experts
  Fence arrived = {};

  ConstTensorView sent() const { return leaving.allocated() ? leaving.view() : source; }
  bool ready() const { return (leaving.allocated() || !source.empty()) && !arriving.allocated(); }
};
// Exchanges rows that are ready, queued on the exchange lane. The rows that arrive have room for `bound_rows`, so that
// blocks fit every microbatch.
void start_exchange(LayerContext& context, const ExchangePlan& plan, RowsUnderWay& rows, std::int64_t bound_rows);
// Out: [sent, hidden] sorted by expert -> [gathered, hidden] sorted by expert of this rank. `bound_rows` is the most
// rows that can ever arrive.
Tensor finish_dispatch(LayerContext& context, const ExchangePlan& plan, RowsUnderWay rows, std::int64_t bound_rows);
// Back: [gathered, hidden] -> [sent, hidden] in the row order that went out, summed over the expert-tensor group.
RowsUnderWay prepare_return(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows);
Tensor finish_return(LayerContext& context, RowsUnderWay rows);

}  // namespace weft
