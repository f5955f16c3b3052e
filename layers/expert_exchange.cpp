#include "layers/expert_exchange.h"

#include <numeric>

#include "layers/kernels/routing.h"

namespace weft {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum(const Counts& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

Counts elements(const Counts& rows, std::int64_t columns) {
  Counts counts = rows;
  for (std::int64_t& count : counts) count *= columns;
  return counts;
}

// Every rank's counts, rank after rank.
Counts gather_counts(LayerContext& context, Communicator& group, std::span<const std::int64_t> counts) {
  Tensor all = context.kernels.ledger.allocate(Bucket::moe_routing, DType::int32, group.size(),
                                               static_cast<std::int64_t>(counts.size()));
  const TensorView own = all.view().rows_from(group.rank(), 1);
  for (std::size_t i = 0; i < counts.size(); ++i) own.as<std::int32_t>()[i] = static_cast<std::int32_t>(counts[i]);
  group.all_gather(own, all);
  const std::span<const std::int32_t> gathered = all.as<std::int32_t>();
  return {gathered.begin(), gathered.end()};
}

// `rows`: by source, then expert.
RowRuns row_runs(Counts rows, std::size_t experts) {
  RowRuns runs;
  Counts next(experts, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) next[i % experts] += rows[i];
  std::exclusive_scan(next.begin(), next.end(), next.begin(), std::int64_t{0});
  std::int64_t arrived = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    runs.by_source.push_back(arrived);
    runs.by_expert.push_back(next[i % experts]);
    arrived += rows[i];
    next[i % experts] += rows[i];
  }
  runs.rows = std::move(rows);
  return runs;
}

Counts rows_by_expert(const Counts& rows, std::size_t experts) {
  Counts totals(experts, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) totals[i % experts] += rows[i];
  return totals;
}

}  // namespace

std::int64_t ExchangePlan::sent() const {
  return sum(send_rows);
}
std::int64_t ExchangePlan::received() const {
  return sum(receive_rows);
}
std::int64_t ExchangePlan::gathered() const {
  return sum(gathered_rows);
}

ExchangePlan plan_exchange(LayerContext& context, std::span<const std::int64_t> counts) {
  Communicator& group = context.expert;
  const auto ranks = static_cast<std::size_t>(group.size()), self = static_cast<std::size_t>(group.rank());
  const std::size_t experts = counts.size();
  if (experts % ranks != 0) fail("{} experts do not divide over the {} ranks of an expert group", experts, ranks);
  const std::size_t local = experts / ranks;

  ExchangePlan plan;
  const Counts all = gather_counts(context, group, counts);
  Counts received;  // by source, then expert of this rank
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    const auto to_peer = counts.begin() + static_cast<std::ptrdiff_t>(peer * local);
    plan.send_rows.push_back(std::accumulate(to_peer, to_peer + static_cast<std::ptrdiff_t>(local), std::int64_t{0}));
    const auto from_peer = all.begin() + static_cast<std::ptrdiff_t>(peer * experts + self * local);
    received.insert(received.end(), from_peer, from_peer + static_cast<std::ptrdiff_t>(local));
    plan.receive_rows.push_back(
        std::accumulate(from_peer, from_peer + static_cast<std::ptrdiff_t>(local), std::int64_t{0}));
  }
  plan.expert_rows = rows_by_expert(received, local);
  plan.received_runs = row_runs(std::move(received), local);

  Counts gathered = gather_counts(context, context.expert_tensor, plan.expert_rows);
  for (auto rank = gathered.begin(); rank != gathered.end(); rank += static_cast<std::ptrdiff_t>(local)) {
    plan.gathered_rows.push_back(std::accumulate(rank, rank + static_cast<std::ptrdiff_t>(local), std::int64_t{0}));
  }
  plan.expert_rows = rows_by_expert(gathered, local);
  plan.gathered_runs = row_runs(std::move(gathered), local);
  return plan;
}

Tensor dispatch_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows) {
  const std::int64_t hidden = rows.columns();
  const auto tensor = [&](std::int64_t count) {
    return context.kernels.ledger.allocate(Bucket::moe_routing, rows.dtype(), count, hidden, bound_rows);
  };
  if (context.expert.size() > 1) {
    Tensor arrived = tensor(plan.received());
    context.expert.all_to_all(rows, elements(plan.send_rows, hidden), arrived, elements(plan.receive_rows, hidden));
    rows = tensor(plan.received());
    const RowRuns& runs = plan.received_runs;
    move_blocks(context.kernels, arrived, runs.by_source, runs.by_expert, runs.rows, rows);
  }
  if (context.expert_tensor.size() > 1) {
    Tensor gathered = tensor(plan.gathered());
    context.expert_tensor.all_gather(rows, gathered, elements(plan.gathered_rows, hidden));
    rows = tensor(plan.gathered());
    const RowRuns& runs = plan.gathered_runs;
    move_blocks(context.kernels, gathered, runs.by_source, runs.by_expert, runs.rows, rows);
  }
  return rows;
}

Tensor return_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows) {
  const std::int64_t hidden = rows.columns();
  const auto tensor = [&](std::int64_t count, std::int64_t bound) {
    return context.kernels.ledger.allocate(Bucket::moe_routing, rows.dtype(), count, hidden, bound);
  };
  if (context.expert_tensor.size() > 1) {
    Tensor partial = tensor(plan.gathered(), bound_rows);
    const RowRuns& runs = plan.gathered_runs;
    move_blocks(context.kernels, rows, runs.by_expert, runs.by_source, runs.rows, partial);
    rows = tensor(plan.received(), bound_rows);
    context.expert_tensor.reduce_scatter(partial, rows, elements(plan.gathered_rows, hidden));
  }
  if (context.expert.size() > 1) {
    Tensor leaving = tensor(plan.received(), bound_rows);
    const RowRuns& runs = plan.received_runs;
    move_blocks(context.kernels, rows, runs.by_expert, runs.by_source, runs.rows, leaving);
    rows = tensor(plan.sent(), 0);
    context.expert.all_to_all(leaving, elements(plan.receive_rows, hidden), rows, elements(plan.send_rows, hidden));
  }
  return rows;
}

}  // namespace weft
