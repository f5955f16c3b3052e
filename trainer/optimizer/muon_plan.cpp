#include "trainer/optimizer/muon_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "parallel/runtime/error.h"
#include "trainer/optimizer/muon.h"

namespace weft {
namespace {

bool in_message_order(const RowMove& a, const RowMove& b) {
  return std::tie(a.from, a.to, a.matrix, a.row_begin) < std::tie(b.from, b.to, b.matrix, b.row_begin);
}

std::vector<PlannedMatrix> matrices_of(std::span<const HeldRows> held, int ranks) {
  std::map<std::string, PlannedMatrix> by_name;
  for (const HeldRows& rows : held) {
    require(rows.rank >= 0 && rows.rank < ranks, "rows are held by a rank of the stage");
    if (rows.rows < 1 || rows.row_begin < 0 || rows.row_begin + rows.rows > rows.matrix_rows || rows.columns < 1) {
      fail("rank {} holds rows {} to {} of {}, which has {} rows and {} columns", rows.rank, rows.row_begin,
           rows.row_begin + rows.rows, rows.matrix, rows.matrix_rows, rows.columns);
    }
    const auto [found, is_new] =
        by_name.try_emplace(rows.matrix, PlannedMatrix{rows.matrix, rows.matrix_rows, rows.columns, rows.transposed, 0,
                                                       newton_schulz_flops(rows.matrix_rows, rows.columns)});
    const PlannedMatrix& matrix = found->second;
    if (matrix.rows != rows.matrix_rows || matrix.columns != rows.columns || matrix.transposed != rows.transposed) {
      fail("{} is {} x {} to rank {}, which holds rows {} to {}, and {} x {}{} to another", rows.matrix,
           rows.matrix_rows, rows.columns, rows.rank, rows.row_begin, rows.row_begin + rows.rows, matrix.rows,
           matrix.columns, matrix.transposed == rows.transposed ? "" : ", turned the other way,");
    }
  }
  std::vector<PlannedMatrix> matrices;
  for (auto& [name, matrix] : by_name) matrices.push_back(std::move(matrix));
  return matrices;
}

// Takes matrices by descending FLOP, equal ones by name. Each goes to the rank with the fewest FLOP so far, the lowest
// of several.
void choose_owners(std::vector<PlannedMatrix>& matrices, int ranks) {
  std::vector<PlannedMatrix*> order;
  for (PlannedMatrix& matrix : matrices) order.push_back(&matrix);
  std::ranges::stable_sort(order, std::ranges::greater{}, &PlannedMatrix::flops);
  std::vector<std::int64_t> flops(static_cast<std::size_t>(ranks), 0);
  for (PlannedMatrix* matrix : order) {
    const auto least = std::min_element(flops.begin(), flops.end());
    matrix->owner = static_cast<int>(least - flops.begin());
    *least += matrix->flops;
  }
}

// Runs of rows. require_exact() demands that each run begins at the end of the run before.
class Cover {
 public:
  Cover(const PlannedMatrix& matrix, std::string what) : matrix_(matrix), what_(std::move(what)) {}
  void add(std::int64_t row_begin, std::int64_t rows) { runs_.emplace_back(row_begin, row_begin + rows); }
  void require_exact(std::int64_t begin, std::int64_t end) {
    std::sort(runs_.begin(), runs_.end());
    for (const auto& [first, last] : runs_) {
      if (first > begin) fail("rows {} to {} of {} {} by no rank", begin, first, matrix_.name, what_);
      if (first < begin) fail("rows {} to {} of {} {} twice", first, std::min(begin, last), matrix_.name, what_);
      begin = last;
    }
    if (begin < end) fail("rows {} to {} of {} {} by no rank", begin, end, matrix_.name, what_);
    if (begin > end) fail("rows {} to {} of {} {} beyond its end", end, begin, matrix_.name, what_);
  }

 private:
  const PlannedMatrix& matrix_;
  std::string what_;
  std::vector<std::pair<std::int64_t, std::int64_t>> runs_;
};

// (rank, matrix, row_begin, rows) of held rows and of moved rows, compared as sets.
using RowsOfRank = std::tuple<int, std::string, std::int64_t, std::int64_t>;

std::string to_text(const RowsOfRank& rows) {
  const auto& [rank, matrix, begin, count] = rows;
  return fmt::format("rows {} to {} of {} on rank {}", begin, begin + count, matrix, rank);
}

}  // namespace

MatrixPlan plan_matrices(std::span<const HeldRows> held, int ranks) {
  MatrixPlan plan;
  plan.ranks = ranks;
  plan.matrices = matrices_of(held, ranks);
  choose_owners(plan.matrices, ranks);
  std::map<std::string_view, std::size_t> index;
  for (std::size_t m = 0; m < plan.matrices.size(); ++m) index[plan.matrices[m].name] = m;
  for (const HeldRows& rows : held) {
    const std::size_t matrix = index.at(rows.matrix);
    const int owner = plan.matrices[matrix].owner;
    if (rows.first) plan.to_owners.push_back({rows.rank, owner, matrix, rows.row_begin, rows.rows});
    plan.to_holders.push_back({owner, rows.rank, matrix, rows.row_begin, rows.rows});
  }
  std::sort(plan.to_owners.begin(), plan.to_owners.end(), in_message_order);
  std::sort(plan.to_holders.begin(), plan.to_holders.end(), in_message_order);
  check_plan(plan, held);
  return plan;
}

void check_plan(const MatrixPlan& plan, std::span<const HeldRows> held) {
  const auto moved = [&](int rank, const RowMove& move) {
    require(move.matrix < plan.matrices.size(), "a move is of a matrix of the plan");
    return RowsOfRank(rank, plan.matrices[move.matrix].name, move.row_begin, move.rows);
  };
  std::vector<RowsOfRank> held_rows, sent_back;
  for (const HeldRows& rows : held) held_rows.emplace_back(rows.rank, rows.matrix, rows.row_begin, rows.rows);
  std::sort(held_rows.begin(), held_rows.end());

  std::vector<Cover> sent;
  for (const PlannedMatrix& matrix : plan.matrices) sent.emplace_back(matrix, "are sent to their owner");
  for (const RowMove& move : plan.to_owners) {
    const RowsOfRank rows = moved(move.from, move);
    if (move.to != plan.matrices[move.matrix].owner)
      fail("{} are sent to rank {}, not to the owner", to_text(rows), move.to);
    if (!std::binary_search(held_rows.begin(), held_rows.end(), rows)) fail("{} are sent but not held", to_text(rows));
    sent[move.matrix].add(move.row_begin, move.rows);
  }
  for (std::size_t m = 0; m < sent.size(); ++m) sent[m].require_exact(0, plan.matrices[m].rows);

  for (const RowMove& move : plan.to_holders) {
    const RowsOfRank rows = moved(move.to, move);
    if (move.from != plan.matrices[move.matrix].owner)
      fail("{} come from rank {}, not from the owner", to_text(rows), move.from);
    sent_back.push_back(rows);
  }
  std::sort(sent_back.begin(), sent_back.end());
  for (const auto* rows : {&held_rows, &sent_back}) {
    for (std::size_t i = 1; i < rows->size(); ++i) {
      const auto& [rank, matrix, begin, count] = (*rows)[i - 1];
      const auto& [next_rank, next_matrix, next_begin, next_count] = (*rows)[i];
      if (rank == next_rank && matrix == next_matrix && next_begin < begin + count) {
        fail("{} overlap {}", to_text((*rows)[i]), to_text((*rows)[i - 1]));
      }
    }
  }
  std::vector<RowsOfRank> differing;
  std::set_symmetric_difference(held_rows.begin(), held_rows.end(), sent_back.begin(), sent_back.end(),
                                std::back_inserter(differing));
  if (!differing.empty()) fail("{} do not come back as they are held", to_text(differing.front()));
}

}  // namespace weft
