#include "trainer/optimizer/muon_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "parallel/runtime/error.h"
#include "trainer/optimizer/muon.h"

namespace weft {
namespace {

std::vector<PlannedMatrix> matrices_of(std::span<const HeldRows> held) {
  std::map<std::string, PlannedMatrix> by_name;
  for (const HeldRows& rows : held) {
    by_name.try_emplace(rows.matrix, PlannedMatrix{rows.matrix, rows.matrix_rows, rows.columns, rows.transposed, 0,
                                                   newton_schulz_flops(rows.matrix_rows, rows.columns)});
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

// Throws Error unless the first holders have every row of a matrix exactly once. An owner would put together a matrix
// with rows of no rank.
void require_exact(const std::vector<PlannedMatrix>& matrices, std::vector<HeldRows> held) {
  std::ranges::sort(held, {}, [](const HeldRows& rows) { return std::tie(rows.matrix, rows.row_begin, rows.rows); });
  auto rows = held.begin();
  for (const PlannedMatrix& matrix : matrices) {
    const auto refuse = [&](std::int64_t begin, std::int64_t end, const char* how) {
      fail("rows {} to {} of {} are sent to their owner {}", begin, end, matrix.name, how);
    };
    std::int64_t end = 0;  // of the rows so far
    for (; rows != held.end() && rows->matrix == matrix.name; ++rows) {
      if (!rows->first) continue;
      if (rows->row_begin > end) refuse(end, rows->row_begin, "by no rank");
      if (rows->row_begin < end) refuse(rows->row_begin, std::min(end, rows->row_begin + rows->rows), "twice");
      end = rows->row_begin + rows->rows;
    }
    if (end < matrix.rows) refuse(end, matrix.rows, "by no rank");
  }
}

}  // namespace

MatrixPlan plan_matrices(std::span<const HeldRows> held, int ranks) {
  MatrixPlan plan;
  plan.ranks = ranks;
  plan.matrices = matrices_of(held);
  require_exact(plan.matrices, {held.begin(), held.end()});
  choose_owners(plan.matrices, ranks);
  std::map<std::string_view, std::size_t> index;
  for (std::size_t m = 0; m < plan.matrices.size(); ++m) index[plan.matrices[m].name] = m;
  for (const HeldRows& rows : held) {
    const std::size_t matrix = index.at(rows.matrix);
    const int owner = plan.matrices[matrix].owner;
    if (rows.first) plan.to_owners.push_back({rows.rank, owner, matrix, rows.row_begin, rows.rows});
    plan.to_holders.push_back({owner, rows.rank, matrix, rows.row_begin, rows.rows});
  }
  std::ranges::sort(plan.to_owners);
  std::ranges::sort(plan.to_holders);
  return plan;
}

}  // namespace weft
