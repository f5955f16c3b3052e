// The owner of each matrix, and the rows that ranks exchange for it: pure data, the same on every rank of a stage.
//
// Muon updates a matrix as a whole, but no rank holds a whole matrix. Shards, tensor and expert-tensor ranks hold runs
// of its rows, and replicas hold the same rows again. So every matrix gets an owner. The first holder of each row sends
// it to the owner once, and the owner sends the result to every holder. Owners are chosen by cost: the largest matrix
// first, to the rank with the fewest FLOP so far. Ranks of replicas are owners too.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

// A run of rows of one matrix on one rank. Ranks are numbered from 0 within the stage (Group::tokens).
struct HeldRows {
  int rank = 0;
  std::string matrix;  // global name
  std::int64_t matrix_rows = 0, columns = 0;
  bool transposed = false;  // see ParameterSpec
  std::int64_t row_begin = 0, rows = 0;
  bool first = true;  // exactly one holder of the same rows is the first
};

struct PlannedMatrix {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  bool transposed = false;
  int owner = 0;
  std::int64_t flops = 0;  // of its orthogonalisation
  std::int64_t size() const { return rows * columns; }
  bool operator==(const PlannedMatrix&) const = default;
};

// Rows [row_begin, row_begin + rows) of MatrixPlan::matrices[matrix] go from rank `from` to rank `to`, which may be
// the same.
struct RowMove {
  int from = 0, to = 0;
  std::size_t matrix = 0;
  std::int64_t row_begin = 0, rows = 0;
  auto operator<=>(const RowMove&) const = default;
};

struct MatrixPlan {
  int ranks = 1;
  std::vector<PlannedMatrix> matrices;  // by name
  // To the owners and back, ordered by sender, receiver, matrix and row: the order within a message.
  std::vector<RowMove> to_owners, to_holders;

  bool operator==(const MatrixPlan&) const = default;
};

// `held` are the rows of all ranks of the stage, in any order. Throws Error (failure), naming matrix and rows, unless
// the first holders have every row of a matrix exactly once.
MatrixPlan plan_matrices(std::span<const HeldRows> held, int ranks);

}  // namespace weft
