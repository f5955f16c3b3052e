// The parts of the checker. Each walks the lists independently and appends its findings; check.cpp combines them.
#pragma once

#include <vector>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/pieces.h"

namespace weft {

struct CheckContext {
  const Program& program;
  const PieceTable& pieces;
  std::vector<int> replicas;  // by row: the first row of its group of replicas

  std::size_t rows() const { return program.ranks.size(); }
  const std::vector<Action>& list(int row) const { return program.ranks[row]; }
  // Replicas run the same stages; `rank` may be any number.
  bool stands_for(int row, int rank) const {
    return rank >= 0 && rank < static_cast<int>(rows()) && replicas[row] == replicas[rank];
  }
  bool runs(int row, int stage) const { return stands_for(row, program.stages[stage].rank); }
  // Whether the action is well formed and on a stage of this row.
  bool legible(int row, const Action& action) const {
    return !malformed(program, pieces, action) && (!action.stage || runs(row, *action.stage));
  }
};

// Compute and exchange of one rank: stages exist, each piece runs once and in order, data is there before it is read.
void check_compute(const CheckContext& context, int row, std::vector<Finding>& findings);
// Units of one rank: gathered before they are read, reduced once and in time, updated last.
void check_units(const CheckContext& context, int row, std::vector<Finding>& findings);
// All ranks: sends and receives match and are in one order; no deadlock, neither with ranks as threads nor on lanes
// (check_lanes.h).
void check_exchange(const CheckContext& context, std::vector<Finding>& findings);
// Rows that share collectives: one order for all.
void check_collectives(const CheckContext& context, const std::vector<std::vector<int>>& replica_rows,
                       std::vector<Finding>& findings);
// GRAD_NORM and STEP involve the whole world: on all ranks or on none.
void check_update(const CheckContext& context, std::vector<Finding>& findings);

}  // namespace weft
