// Who orthogonalises which matrix, and which rows travel for it: pure data, the same on every rank of a stage.
//
// Muon changes a matrix as a whole, but no rank has one: shards, tensor and expert-tensor ranks hold runs of its rows,
// replicas hold them several times. So every matrix gets an owner; each row goes there once, from its first holder, and
// what becomes of it comes back to every holder. Owners are chosen by cost, largest matrix first to the rank with the
// least to do, replicas included.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

// A run of rows of one matrix that a rank holds. Ranks are those of the stage (Group::tokens), from 0.
struct HeldRows {
  int rank = 0;
  std::string matrix;  // global name
  std::int64_t matrix_rows = 0, columns = 0;
  bool transposed = false;  // see ParameterSpec
  std::int64_t row_begin = 0, rows = 0;
  bool first = true;  // of several holders of the same rows, one is the first
  bool operator==(const HeldRows&) const = default;
};

struct PlannedMatrix {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  bool transposed = false;
  int owner = 0;
  std::int64_t flops = 0;  // of orthogonalising it
  std::int64_t size() const { return rows * columns; }
  bool operator==(const PlannedMatrix&) const = default;
};

// Rows [row_begin, row_begin + rows) of matrix `matrix` of the plan go from one rank to another, or stay.
struct RowMove {
  int from = 0, to = 0;
  std::size_t matrix = 0;
  std::int64_t row_begin = 0, rows = 0;
  bool operator==(const RowMove&) const = default;
};

struct MatrixPlan {
  int ranks = 1;
  std::vector<PlannedMatrix> matrices;  // by name
  // To the owners and back, ordered by sender, receiver, matrix and row: the order within a message.
  std::vector<RowMove> to_owners, to_holders;

  std::vector<std::int64_t> flops_of_ranks() const;
  // The largest of them over their mean; 1 without matrices. At most 1 + the largest matrix over the mean.
  double imbalance() const;
  bool operator==(const MatrixPlan&) const = default;
};

// `held` are the rows of all ranks of the stage, in any order. Throws Error (failure), naming matrix and rows, when the
// first holders do not have every row of a matrix exactly once, a rank holds a row twice, or two ranks do not agree on
// a matrix' shape.
MatrixPlan plan_matrices(std::span<const HeldRows> held, int ranks);

// Holds a plan against what ranks hold, sharing nothing with how it was made: every row of every matrix is sent to its
// owner exactly once, by a rank that holds it, and comes back from there exactly once to each holder. Throws Error
// (failure) naming matrix and rows.
void check_plan(const MatrixPlan& plan, std::span<const HeldRows> held);

}  // namespace weft
