// Programs and tables that the tests of the pipeline share.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/pipeline/passes.h"
#include "parallel/pipeline/program.h"
#include "parallel/pipeline/text.h"

namespace weft {

// One stage per rank, `units` segments per stage with a unit each, named "blocks.0" .. through the stages.
// A gathered unit takes 1 byte, nothing else takes any, so that the transient peak counts gathered units.
inline ProgramTables stage_tables(int ranks, int units, const UnitPolicy& policy = {}) {
  ProgramTables tables;
  for (int stage = 0; stage < ranks; ++stage) {
    ProgramStage entry{.rank = stage, .output_bytes = 100 + stage};
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

inline Program compiled(const ProgramTables& tables, std::string_view schedule, int microbatches) {
  return compile(tables, find_schedule(schedule),
                 {.ranks = static_cast<int>(tables.stages.size()), .microbatches = microbatches});
}

// Only the order and its exchange, on stages without segments.
inline Program bare(std::string_view schedule, int ranks, int microbatches) {
  const OrderInput input{.ranks = ranks, .microbatches = microbatches};
  return add_exchange({bare_tables(ranks, ranks), microbatches, find_schedule(schedule).order(input)});
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
