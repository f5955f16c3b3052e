#include "parallel/pipeline/simulation/cost_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

bool is_island(Group group) {
  return group == Group::dp_island || group == Group::edp_island;
}

const LinkCost& link_of(const std::map<Group, LinkCost>& links, Group group) {
  const auto found = links.find(group);
  if (found == links.end()) fail_request("no link is given for group {}, which the program uses", name_of(group));
  return found->second;
}

// Seconds of `count` calls with `bytes` in total.
double collective_seconds(const std::map<Group, LinkCost>& links, Group group, CollectiveOp op, std::int64_t count,
                          std::int64_t bytes, int ranks) {
  if (ranks <= 1 || count == 0) return 0.0;
  const auto calls = static_cast<double>(count);
  return calls * link_seconds(link_of(links, group), op, static_cast<double>(bytes) / calls, ranks);
}

// Routed tokens are dealt evenly.
double seconds_of(const ProgramCollective& part, const std::map<Group, LinkCost>& links, const GroupSizes& sizes) {
  const std::int64_t bytes = part.is_bound ? part.timed_bytes : part.bytes;
  return collective_seconds(links, part.group, part.op, part.count, bytes, sizes.at(part.group));
}

// Seconds of the collectives of an action.
double seconds_of(const std::vector<ProgramCollective>& collectives, Op during, const std::map<Group, LinkCost>& links,
                  const GroupSizes& sizes) {
  double seconds = 0.0;
  for (const ProgramCollective& part : collectives) {
    if (part.during == during) seconds += seconds_of(part, links, sizes);
  }
  return seconds;
}

// Links with the adapters' rates alone: a collective takes the seconds in which it uses the adapters.
std::map<Group, LinkCost> adapters_alone(const std::map<Group, LinkCost>& links) {
  constexpr double at_once = std::numeric_limits<double>::infinity();
  std::map<Group, LinkCost> alone;
  for (const auto& [group, link] : links) {
    const AdapterRates rates = link.adapters.value_or(AdapterRates{at_once, at_once});
    alone[group] = {.bytes_per_second = rates.ring, .exchange_bytes_per_second = rates.exchange};
  }
  return alone;
}

// Of a forward's collective, or an input gradient's, that is exchanged beside other computations.
double& rows_of(ComputeCost& cost, const ProgramCollective& part) {
  if (part.during == Op::forward) return part.beside == 1 ? cost.forward_out : cost.forward_back;
  return part.beside == 1 ? cost.backward_out : cost.backward_back;
}

double host_seconds(const HardwareCosts& hardware, std::int64_t bytes) {
  if (hardware.host_bytes_per_second <= 0.0) fail_request("host memory needs the rate of copies to the host");
  return static_cast<double>(bytes) / hardware.host_bytes_per_second;
}

// Of the exchange of rows out during an action, the seconds beside products that need no rows.
double covered_seconds(const ProgramSegment& segment, Op during, const SegmentFlops& work,
                       const HardwareCosts& hardware, const GroupSizes& sizes) {
  double out = 0.0;
  for (const ProgramCollective& part : segment.collectives) {
    if (part.during == during && part.beside == 1) out += seconds_of(part, hardware.links, sizes);
  }
  const bool backward = during == Op::backward_input;
  return std::min(out,
                  work.beside * (backward ? hardware.seconds_per_flop_backward : hardware.seconds_per_flop_forward));
}

ActionCosts action_costs(const ProgramTables& tables, std::span<const SegmentFlops> flops,
                         const HardwareCosts& hardware, const GroupSizes& sizes) {
  const auto& links = hardware.links;
  ActionCosts costs = even_costs(tables, {});
  for (std::size_t i = 0; i < tables.segments.size(); ++i) {
    const ProgramSegment& segment = tables.segments[i];
    const SegmentFlops work = flops.empty() ? SegmentFlops{} : flops[i];
    const auto covered = [&](Op during) { return covered_seconds(segment, during, work, hardware, sizes); };
    const auto exposed = [&](Op during) {
      return seconds_of(segment.collectives, during, links, sizes) - covered(during);
    };
    costs.segments[i] = {
        .forward = work.forward * hardware.seconds_per_flop_forward + exposed(Op::forward),
        .backward_input = work.backward_input * hardware.seconds_per_flop_backward + exposed(Op::backward_input),
        .backward_weight = work.backward_weight * hardware.seconds_per_flop_backward + exposed(Op::backward_weight),
        .forward_covered = covered(Op::forward),
        .backward_covered = covered(Op::backward_input)};
    for (const ProgramCollective& part : segment.collectives) {
      if (part.beside == 0 || (part.during != Op::forward && part.during != Op::backward_input)) continue;
      rows_of(costs.segments[i], part) += seconds_of(part, links, sizes);
    }
    if (segment.offload_bytes > 0) {
      costs.segments[i].host_copy = host_seconds(hardware, segment.offload_bytes);
    }
    if (!segment.region) continue;
    costs.segments[i].spared =
        work.spared * hardware.seconds_per_flop_forward + exposed(Op::forward) - exposed(Op::recompute);
  }
  for (std::size_t i = 0; i < tables.units.size(); ++i)
    costs.units[i] = unit_cost(tables, tables.units[i], links, sizes);
  for (std::size_t s = 0; s + 1 < tables.stages.size(); ++s) {
    if (tables.stages[s].rank == tables.stages[s + 1].rank) continue;
    costs.transfers[s] = link_seconds(link_of(links, Group::pp), CollectiveOp::send,
                                      static_cast<double>(tables.stages[s].output_bytes), 2);
  }
  costs.gradient_norm = seconds_of(tables.update, Op::gradient_norm, links, sizes);
  costs.optimizer_step = seconds_of(tables.update, Op::optimizer_step, links, sizes);
  if (tables.update_host_bytes > 0) costs.optimizer_step += host_seconds(hardware, tables.update_host_bytes);
  return costs;
}

}  // namespace

GroupSizes group_sizes(const Mesh& mesh) {
  GroupSizes sizes;
  for (Group group : all_groups) sizes[group] = mesh.steps(group).count;
  return sizes;
}

double link_seconds(const LinkCost& link, CollectiveOp op, double payload, int ranks) {
  if (ranks <= 1) return 0.0;
  const double steps = ranks - 1, sent = steps / ranks * payload / link.bytes_per_second;
  switch (op) {
    case CollectiveOp::all_gather:
    case CollectiveOp::reduce_scatter:
      return steps * link.latency + sent;
    case CollectiveOp::all_to_all:
      return steps * link.latency +
             steps / ranks * payload / link.exchange_bytes_per_second.value_or(link.bytes_per_second);
    case CollectiveOp::all_reduce:
      return 2.0 * (steps * link.latency + sent);
    case CollectiveOp::broadcast:
    case CollectiveOp::send:
    case CollectiveOp::receive:
    case CollectiveOp::barrier:
      return link.latency + payload / link.bytes_per_second;
  }
  return 0.0;
}

UnitCost unit_cost(const ProgramTables& tables, const ProgramUnit& unit, const std::map<Group, LinkCost>& links,
                   const GroupSizes& sizes) {
  UnitCost cost;
  for (const ProgramCollective& part : unit.collectives) {
    const bool ties = part.group == Group::tied;
    const int ranks = ties                    ? static_cast<int>(tied_ranks(tables, unit).size())
                      : is_island(part.group) ? unit.policy.island_ranks
                                              : sizes.at(part.group);
    const double seconds =
        collective_seconds(links, ties ? Group::pp : part.group, part.op, part.count, part.bytes, ranks);
    for (const auto& [op, member] : unit_seconds) {
      if (part.during == op) cost.*member += seconds;
    }
  }
  return cost;
}

std::map<Group, ActionCosts> compute_collectives(const ProgramTables& tables, std::span<const SegmentFlops> flops,
                                                 const HardwareCosts& hardware, const GroupSizes& sizes) {
  std::map<Group, ActionCosts> costs;
  for (std::size_t i = 0; i < tables.segments.size(); ++i) {
    const ProgramSegment& segment = tables.segments[i];
    std::map<Op, double> covered;  // belongs to the first collective of the exchange
    for (const Op op : {Op::forward, Op::recompute, Op::backward_input}) {
      covered[op] = covered_seconds(segment, op, flops.empty() ? SegmentFlops{} : flops[i], hardware, sizes);
    }
    for (const ProgramCollective& part : segment.collectives) {
      const double whole = seconds_of(part, hardware.links, sizes);
      if (whole == 0.0) continue;
      ComputeCost& cost = costs.try_emplace(part.group, even_costs(tables, {})).first->second.segments[i];
      const double hidden = part.beside == 1 ? std::exchange(covered[part.during], 0.0) : 0.0;
      const double seconds = whole - hidden;
      if (part.during == Op::forward) cost.forward += seconds;
      if (part.during == Op::forward) cost.forward_covered += hidden;
      if (part.during == Op::forward && segment.region) cost.spared += seconds;
      if (part.during == Op::recompute) cost.spared -= seconds;
      if (part.during == Op::backward_input) cost.backward_input += seconds;
      if (part.during == Op::backward_input) cost.backward_covered += hidden;
      if (part.beside > 0 && part.during != Op::recompute) rows_of(cost, part) += whole;
      if (part.during == Op::backward_weight) cost.backward_weight += seconds;
    }
  }
  return costs;
}

ProgramCosts modelled_costs(const ProgramTables& tables, std::span<const SegmentFlops> flops,
                            const HardwareCosts& hardware, const GroupSizes& sizes) {
  if (!flops.empty() && flops.size() != tables.segments.size()) {
    fail("operations of {} segments for a program that has {}", flops.size(), tables.segments.size());
  }
  ProgramCosts costs{action_costs(tables, flops, hardware, sizes)};
  const bool leaves =
      std::ranges::any_of(hardware.links, [](const auto& link) { return link.second.adapters.has_value(); });
  if (!leaves) return costs;
  costs.adapters = hardware.nodes;
  costs.on_adapters = action_costs(
      tables, {},
      {.links = adapters_alone(hardware.links), .host_bytes_per_second = std::numeric_limits<double>::infinity()},
      sizes);
  for (std::size_t s = 0; s + 1 < tables.stages.size(); ++s) {
    const auto node_of = [&](std::size_t stage) { return costs.adapters_of(tables.stages[stage].rank); };
    if (node_of(s) == node_of(s + 1)) costs.on_adapters.transfers[s] = 0.0;
  }
  return costs;
}

}  // namespace weft
