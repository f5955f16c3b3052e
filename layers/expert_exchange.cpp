#include "layers/expert_exchange.h"

#include <numeric>

#include "layers/kernels/routing.h"

namespace weft {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::vector<std::int64_t> elements(const std::vector<std::int64_t>& rows, std::int64_t columns) {
  std::vector<std::int64_t> counts = rows;
  for (std::int64_t& count : counts) count *= columns;
  return counts;
}

}  // namespace

std::int64_t ExchangePlan::sent() const {
  return sum(send_rows);
}
std::int64_t ExchangePlan::received() const {
  return sum(receive_rows);
}

ExchangePlan plan_exchange(LayerContext& context, std::span<const std::int64_t> counts) {
  Communicator& group = context.expert;
  const auto ranks = static_cast<std::size_t>(group.size()), self = static_cast<std::size_t>(group.rank());
  const std::size_t experts = counts.size();
  if (experts % ranks != 0) fail("{} experts do not divide over the {} ranks of an expert group", experts, ranks);
  const std::size_t local = experts / ranks;

  MemoryLedger& ledger = context.kernels.ledger;
  const auto width = static_cast<std::int64_t>(experts);
  Tensor all = ledger.allocate(Bucket::moe_routing, DType::int32, group.size(), width);
  const TensorView own = all.view().rows_from(group.rank(), 1);
  for (std::size_t e = 0; e < experts; ++e) own.as<std::int32_t>()[e] = static_cast<std::int32_t>(counts[e]);
  group.all_gather(own, all);
  const auto rows_from = [&](std::size_t source, std::size_t expert) {
    return static_cast<std::int64_t>(all.as<std::int32_t>()[source * experts + expert]);
  };

  ExchangePlan plan;
  plan.expert_rows.assign(local, 0);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    std::int64_t to_peer = 0, from_peer = 0;
    for (std::size_t e = 0; e < local; ++e) {
      to_peer += counts[peer * local + e];
      const std::int64_t rows = rows_from(peer, self * local + e);
      from_peer += rows;
      plan.expert_rows[e] += rows;
    }
    plan.send_rows.push_back(to_peer);
    plan.receive_rows.push_back(from_peer);
  }
  std::vector<std::int64_t> next(local, 0);
  std::exclusive_scan(plan.expert_rows.begin(), plan.expert_rows.end(), next.begin(), std::int64_t{0});
  std::int64_t arrived = 0;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    for (std::size_t e = 0; e < local; ++e) {
      const std::int64_t rows = rows_from(peer, self * local + e);
      plan.arrived_at.push_back(arrived);
      plan.grouped_at.push_back(next[e]);
      plan.block_rows.push_back(rows);
      arrived += rows;
      next[e] += rows;
    }
  }
  return plan;
}

Tensor dispatch_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows) {
  if (context.expert.size() == 1) return rows;
  MemoryLedger& ledger = context.kernels.ledger;
  const std::int64_t hidden = rows.columns();
  Tensor arrived = ledger.allocate(Bucket::moe_routing, rows.dtype(), plan.received(), hidden, bound_rows);
  context.expert.all_to_all(rows, elements(plan.send_rows, hidden), arrived, elements(plan.receive_rows, hidden));
  Tensor grouped = ledger.allocate(Bucket::moe_routing, rows.dtype(), plan.received(), hidden, bound_rows);
  move_blocks(context.kernels, arrived, plan.arrived_at, plan.grouped_at, plan.block_rows, grouped);
  return grouped;
}

Tensor return_rows(LayerContext& context, const ExchangePlan& plan, Tensor rows, std::int64_t bound_rows) {
  if (context.expert.size() == 1) return rows;
  MemoryLedger& ledger = context.kernels.ledger;
  const std::int64_t hidden = rows.columns();
  Tensor leaving = ledger.allocate(Bucket::moe_routing, rows.dtype(), plan.received(), hidden, bound_rows);
  move_blocks(context.kernels, rows, plan.grouped_at, plan.arrived_at, plan.block_rows, leaving);
  Tensor back = ledger.allocate(Bucket::moe_routing, rows.dtype(), plan.sent(), hidden);
  context.expert.all_to_all(leaving, elements(plan.receive_rows, hidden), back, elements(plan.send_rows, hidden));
  return back;
}

}  // namespace weft
