// Programs and tables that the tests of the pipeline share.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/program.h"
#include "tests/parallel/program_text.h"

namespace weft {

// `chunks` stages per rank, `units` segments per stage with a unit each, named "blocks.0" .. through the stages.
// A gathered unit takes 1 byte, nothing else takes any, so that the transient peak counts gathered units.
inline ProgramTables stage_tables(int ranks, int units, const UnitPolicy& policy = {}, int chunks = 1,
                                  Placement placement = Placement::looped) {
  ProgramTables tables;
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    ProgramStage entry{.rank = rank_of(placement, ranks, stage), .output_bytes = 100 + stage};
    for (int i = 0; i < units; ++i) {
      const int index = stage * units + i;
      entry.segments.push_back(index);
      tables.segments.push_back({.name = fmt::format("blocks.{}", index), .stage = stage, .units = {index}});
      tables.units.push_back({.name = fmt::format("blocks.{}", index),
                              .stage = stage,
                              .unsharded_bytes = 1,
                              .gather_bytes = 10 + index,
                              .reduce_bytes = 20 + index,
                              .policy = policy});
    }
    tables.stages.push_back(entry);
  }
  return tables;
}

// The same of blocks with experts. An attention part reads the block's dense unit, and an expert part reads that and
// the unit of the experts.
inline ProgramTables expert_tables(int ranks, int blocks, const UnitPolicy& policy = {}, int chunks = 1,
                                   Placement placement = Placement::looped) {
  ProgramTables tables = stage_tables(ranks, 2 * blocks, policy, chunks, placement);
  for (std::size_t experts = 1; experts < tables.segments.size(); experts += 2) {
    tables.segments[experts].units.insert(tables.segments[experts].units.begin(), static_cast<int>(experts) - 1);
  }
  return tables;
}

// Lets a segment exchange rows with other ranks' experts, so many times in a forward, in R and in an input gradient.
inline void exchange_rows(ProgramSegment& segment, int forward, int again, int backward) {
  const auto add = [&](Op during, int count) {
    for (int beside = 1; beside <= count; ++beside) {
      segment.collectives.push_back(
          {.during = during, .op = CollectiveOp::all_to_all, .group = Group::ep, .count = 1, .beside = beside});
    }
  };
  add(Op::forward, forward);
  if (segment.region) add(Op::recompute, again);
  add(Op::backward_input, backward);
}

inline Program compiled(const ProgramTables& tables, std::string_view schedule, int microbatches) {
  return compile(tables, find_schedule(schedule),
                 {.ranks = static_cast<int>(tables.stages.size()), .microbatches = microbatches});
}

inline Program compiled(const Schedule& schedule, const OrderInput& input, int units, const UnitPolicy& policy = {}) {
  return compile(stage_tables(input.ranks, units, policy, input.chunks, schedule.placement), schedule, input);
}

// Only the order, on stages without segments.
inline Program ordered(const Schedule& schedule, const OrderInput& input) {
  return {schedule_only_tables(input.ranks, input.ranks * input.chunks, schedule.placement), input.microbatches,
          schedule.order(input)};
}

// Only the order and its exchange, on stages without segments.
inline Program bare(std::string_view schedule, int ranks, int microbatches) {
  return add_exchange(ordered(find_schedule(schedule), {.ranks = ranks, .microbatches = microbatches}));
}

// Whether a schedule can order these counts: its rule, stated here anew.
inline bool can_order(std::string_view schedule, const OrderInput& input) {
  const int group = input.microbatch_group, rest = group == 0 ? 0 : input.microbatches % group;
  const bool in_groups =
      group == 0 ? input.microbatches % std::max(1, input.microbatches / input.ranks) == 0
                 : group >= input.ranks && input.microbatches >= group && (rest == 0 || rest >= input.ranks);
  if (schedule == "interleaved") return input.chunks >= 2 && in_groups;
  if (schedule == "zb1p" || schedule == "combined_1f1b")
    return in_groups || (input.chunks == 1 && input.microbatch_group == 0);
  if (input.microbatch_group != 0) return false;
  if (schedule == "looped_bfs") return true;
  if (schedule == "zbv" || schedule == "v_half" || schedule == "v_min") return input.chunks == 2;
  if (schedule == "dualpipev") return input.chunks == 2 && input.microbatches >= 2 * input.ranks;
  return input.chunks == 1;
}

// Whether a schedule takes the backwards of microbatches in descending order, so that weight gradients add up in
// another order than under all others.
inline bool descends(std::string_view schedule) {
  return schedule == "looped_bfs";
}

// All counts up to these that a schedule can order.
inline std::vector<OrderInput> inputs_of(const Schedule& schedule, int ranks, int chunks, int microbatches) {
  std::vector<OrderInput> inputs;
  for (OrderInput input; input.ranks <= ranks; ++input.ranks) {
    for (input.chunks = 1; input.chunks <= chunks; ++input.chunks) {
      for (input.microbatches = 1; input.microbatches <= microbatches; ++input.microbatches) {
        if (can_order(schedule.name, input)) inputs.push_back(input);
      }
    }
  }
  return inputs;
}

inline std::string described(const Schedule& schedule, const OrderInput& input) {
  return fmt::format("{}, {} ranks, {} chunks, {} microbatches", schedule.name, input.ranks, input.chunks,
                     input.microbatches);
}

// The cells of a rank, separated by blanks.
inline std::string cells(const Program& program, int rank) {
  std::string text;
  for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", format_action(program, action));
  }
  return text;
}

inline int count_of(const Program& program, int rank, Op op, std::optional<int> unit = std::nullopt) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::count_if(actions.begin(), actions.end(), [&](const Action& action) {
    return action.op == op && (!unit || action.unit == unit);
  }));
}

}  // namespace weft
