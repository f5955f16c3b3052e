#include "trainer/plan/gradient_norm.h"

#include <cmath>
#include <limits>

#include "parallel/runtime/elementwise.h"

namespace weft {

bool counts_unit(const PlannedUnit& unit, const Mesh& mesh, int rank) {
  const auto is_first = [&](Group group) { return mesh.steps(group).place(rank) == 0; };
  if (unit.plan.replicated()) return is_first(Group::tokens);
  if (unit.copy > 0) return false;
  const bool whole = unit.layout.shards == 1;
  return is_first(unit.replicate_group) && (!whole || is_first(unit.shard_group));
}

bool counts_parameter(const PlannedUnit& unit, const ParameterSpec& parameter, const Coordinates& at) {
  return unit.plan.replicated() || !parameter.tensor_replicated || at.tp == 0;
}

double gradient_factor(double square_sum, double largest, double inverse_loss_scale) {
  if (!std::isfinite(square_sum)) return std::numeric_limits<double>::quiet_NaN();
  const double norm = std::sqrt(square_sum) * inverse_loss_scale;
  return (largest > 0.0 && norm > largest ? largest / norm : 1.0) * inverse_loss_scale;
}

void add_counted_squares(Stream& stream, const PlannedUnit& unit, std::span<const OwnedRows> rows, const Mesh& mesh,
                         int rank, TensorView sum) {
  if (!counts_unit(unit, mesh, rank)) return;
  const Coordinates at = mesh.coordinates(rank);
  for (const OwnedRows& owned : rows) {
    if (owned.gradients.empty()) continue;  // frozen
    if (counts_parameter(unit, *owned.parameter, at)) square_sum(stream, owned.gradients, sum);
  }
}

}  // namespace weft
