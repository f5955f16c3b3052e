#include "parallel/pipeline/program/program.h"

#include <set>

#include "parallel/runtime/error.h"

namespace weft {

std::string_view computation_name(Op op) {
  // Compute actions come first in Op.
  constexpr auto words = name_list("forward", "backward", "input gradient", "weight gradient", "recompute");
  if (!is_compute(op)) fail("{} computes nothing", name_of(op));
  return words[static_cast<std::size_t>(op)];
}

int row_exchanges(const ProgramSegment& segment, Op op) {
  int exchanges = 0;
  for (const ProgramCollective& each : segment.collectives) {
    const bool during = makes_input_gradient(op) ? each.during == Op::backward_input : each.during == op;
    if (during) exchanges = std::max(exchanges, each.beside);
  }
  return exchanges;
}

bool crosses_ranks(const ProgramTables& tables, Op op, int stage) {
  const int other = other_stage(op, stage);
  if (other < 0 || other >= static_cast<int>(tables.stages.size())) return false;
  return tables.stages[other].rank != tables.stages[stage].rank;
}

std::vector<int> tied_ranks(const ProgramTables& tables, const ProgramUnit& unit) {
  std::set<int> ranks;
  for (const int copy : unit.copies) ranks.insert(tables.stages[tables.units[copy].stage].rank);
  return {ranks.begin(), ranks.end()};
}

std::vector<int> copies_on_rank(const ProgramTables& tables, const ProgramUnit& unit, int rank) {
  std::vector<int> here;
  for (const int copy : unit.copies) {
    if (tables.stages[tables.units[copy].stage].rank == rank) here.push_back(copy);
  }
  return here;
}

MessageLanes message_lanes_of(const ProgramTables& tables, const Action& message) {
  const Op op = message.op;
  const auto rank_of_stage = [&](int stage) { return tables.stages[stage].rank; };
  const int here = rank_of_stage(*message.stage), there = rank_of_stage(other_stage(op, *message.stage));
  const bool up = is_send(op) ? here < there : there < here;
  const bool forward = carries_activations(op);
  return message_lanes[(forward ? 0u : 2u) + (up ? 0u : 1u)];
}

Lane lane_of(const ProgramTables& tables, const Action& action) {
  const Op op = action.op;
  // A reshard is on the gather lane because the next gather takes the memory that the reshard frees.
  if (is_gather(op) || is_reshard(op)) return Lane::gather;
  if (is_reduction(op) || op == Op::tie_gradient) return Lane::reduce;
  if (is_row_exchange(op)) return Lane::exchange;
  if (is_host_copy(op)) return op == Op::offload ? Lane::to_host : Lane::from_host;
  if (!is_message(op)) return Lane::compute;
  const MessageLanes lanes = message_lanes_of(tables, action);
  return is_send(op) ? lanes.send : lanes.receive;
}

ProgramTables schedule_only_tables(int ranks, int stages, Placement placement) {
  if (ranks < 1 || stages < ranks) {
    fail_request("{} stages on {} pipeline ranks: there is at least one rank, and every rank runs a stage", stages,
                 ranks);
  }
  ProgramTables tables;
  for (int stage = 0; stage < stages; ++stage) {
    tables.stages.push_back({.rank = rank_of(placement, ranks, stage)});
  }
  return tables;
}

}  // namespace weft
