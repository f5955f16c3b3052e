#include "layers/expert_exchange.h"

#include <numeric>
#include <utility>

#include "parallel/runtime/elementwise.h"

namespace weft {

std::int64_t sum(const RowCounts& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

RowCounts elements(RowCounts rows, std::int64_t columns) {
  for (std::int64_t& count : rows) count *= columns;
  return rows;
}

namespace {

// `rows` is indexed by source, then expert.
RowCounts rows_by_expert(const RowCounts& rows, std::size_t experts) {
  RowCounts totals(experts, 0);
  for (std::size_t source = 0; source < rows.size(); source += experts) {
    for (std::size_t e = 0; e < experts; ++e) totals[e] += rows[source + e];
  }
  return totals;
}

RowBlocks row_blocks(RowCounts rows, std::size_t experts) {
  RowBlocks blocks{RowCounts(rows.size()), RowCounts(rows.size()), {}};
  RowCounts next = rows_by_expert(rows, experts);
  std::exclusive_scan(next.begin(), next.end(), next.begin(), std::int64_t{0});
  std::int64_t arrived = 0;
  for (std::size_t source = 0; source < rows.size(); source += experts) {
    for (std::size_t e = 0; e < experts; ++e) {
      const std::int64_t count = rows[source + e];
      blocks.by_rank[source + e] = arrived;
      blocks.sorted[source + e] = next[e];
      arrived += count;
      next[e] += count;
    }
  }
  blocks.rows = std::move(rows);
  return blocks;
}

}  // namespace

std::unique_ptr<Staging> gather_counts(KernelContext& kernels, std::initializer_list<Communicator*> groups,
                                       ConstTensorView counts) {
  const std::int64_t receivers = counts.size();
  if (receivers % (*groups.begin())->size() != 0) {
    fail("{} experts do not divide over the {} ranks of an expert group", receivers, (*groups.begin())->size());
  }
  std::int64_t own = 0, ranks = 1;  // this rank's row, and all rows
  for (const Communicator* group : groups) {
    own += group->rank() * ranks;
    ranks *= group->size();
  }
  auto host = std::make_unique<Staging>(kernels.stream.device(), DType::int32, ranks, receivers);
  Tensor all = kernels.routing(DType::int32, ranks, receivers);
  cast(kernels.stream, counts.reshaped(1, receivers), all.view().rows_from(own, 1));
  // The rows gathered so far begin at a multiple of their number. The lanes of the groups and the compute lane
  // alternate: each gather reads the result of the one before.
  std::int64_t rows = 1;
  for (Communicator* group : groups) {
    const TensorView part = all.view().rows_from(own / rows * rows, rows);
    rows *= group->size();
    group->stream().wait_for(kernels.stream);
    group->all_gather(part, all.view().rows_from(own / rows * rows, rows));
    kernels.stream.wait_for(group->stream());
  }
  host->download(kernels.stream, all);
  return host;
}

ExchangePlan plan_exchange(const LayerContext& context, std::span<const std::int32_t> counts) {
  const Communicator &expert = context.expert, &expert_tensor = context.expert_tensor;
  const auto ranks = static_cast<std::size_t>(expert.size()), self = static_cast<std::size_t>(expert.rank());
  const auto parts = static_cast<std::size_t>(expert_tensor.size());
  const std::size_t experts = counts.size() / (ranks * parts), local = experts / ranks;
  // Rows from rank `source` to rank `to` of an expert group, by expert of `to`. `part` is the rank in the expert-tensor
  // group that this expert group belongs to.
  const auto rows = [&](std::size_t part, std::size_t source, std::size_t to) {
    return counts.subspan((part * ranks + source) * experts + to * local, local);
  };
  const auto total = [](std::span<const std::int32_t> values) {
    return std::accumulate(values.begin(), values.end(), std::int64_t{0});
  };

  ExchangePlan plan;
  const auto part = static_cast<std::size_t>(expert_tensor.rank());
  RowCounts received;  // by source, then expert of this rank
  received.reserve(ranks * local);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    plan.send_rows.push_back(total(rows(part, self, peer)));
    const auto from_peer = rows(part, peer, self);
    received.insert(received.end(), from_peer.begin(), from_peer.end());
    plan.receive_rows.push_back(total(from_peer));
  }
  plan.received_runs = row_blocks(std::move(received), local);

  RowCounts gathered(parts * local, 0);  // by rank of the expert-tensor group, then expert of this rank
  for (std::size_t p = 0; p < parts; ++p) {
    plan.gathered_rows.push_back(0);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const auto from_peer = rows(p, peer, self);
      plan.gathered_rows.back() += total(from_peer);
      for (std::size_t e = 0; e < local; ++e) gathered[p * local + e] += from_peer[e];
    }
  }
  plan.expert_rows = rows_by_expert(gathered, local);
  plan.gathered_runs = row_blocks(std::move(gathered), local);
  return plan;
}

void start_exchange(LayerContext& context, const ExchangePlan& plan, RowsUnderWay& under_way, std::int64_t bound_rows) {
  if (context.expert.size() == 1) {
    under_way.arriving = std::move(under_way.leaving);
    return;
  }
  const ConstTensorView rows = under_way.sent();
  const RowCounts& leave = under_way.back ? plan.receive_rows : plan.send_rows;
  const RowCounts& arrive = under_way.back ? plan.send_rows : plan.receive_rows;
  under_way.arriving = context.kernels.routing(rows.dtype(), sum(arrive), rows.columns(), bound_rows);
  Stream& lane = context.expert.stream();
  lane.wait_for(context.kernels.stream);
  context.expert.all_to_all(rows, elements(leave, rows.columns()), under_way.arriving,
                            elements(arrive, rows.columns()));
  under_way.arrived = lane.record();
}

Tensor finish_dispatch(LayerContext& context, const ExchangePlan& plan, RowsUnderWay under_way,
                       std::int64_t bound_rows) {
  Tensor rows = std::move(under_way.arriving);
  if (context.expert.size() > 1) {
    context.kernels.stream.wait(under_way.arrived);
    under_way.leaving.reset();
    rows = reordered(context.kernels, Bucket::moe_routing, plan.received_runs, /*sorted=*/true, rows, bound_rows);
  }
  if (context.expert_tensor.size() > 1) {
    Tensor gathered = context.kernels.routing(rows.dtype(), sum(plan.gathered_rows), rows.columns(), bound_rows);
    context.expert_tensor.all_gather(rows, gathered, elements(plan.gathered_rows, rows.columns()));
    rows = reordered(context.kernels, Bucket::moe_routing, plan.gathered_runs, /*sorted=*/true, gathered, bound_rows);
  }
  return rows;
}

RowsUnderWay prepare_return(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows) {
  if (context.expert_tensor.size() > 1) {
    const Tensor partial =
        reordered(context.kernels, Bucket::moe_routing, plan.gathered_runs, /*sorted=*/false, rows, bound_rows);
    rows = context.kernels.routing(partial.dtype(), sum(plan.receive_rows), partial.columns(), bound_rows);
    context.expert_tensor.reduce_scatter(partial, rows, elements(plan.gathered_rows, partial.columns()));
  }
  if (context.expert.size() > 1) {
    rows = reordered(context.kernels, Bucket::moe_routing, plan.received_runs, /*sorted=*/false, rows, bound_rows);
  }
  return {.leaving = std::move(rows), .back = true};
}

Tensor finish_return(LayerContext& context, RowsUnderWay rows) {
  if (rows.arrived) context.kernels.stream.wait(rows.arrived);
  return std::move(rows.arriving);
}

}  // namespace weft
