// The norm of the whole model's gradient. Each distinct parameter counts once, although replicas, tensor ranks,
// unsharded units and tied stages hold it several times.
#pragma once

#include <span>

#include "parallel/mesh/mesh.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// Whether this rank counts its rows of a unit. One replica counts them; for a unit kept whole only one rank does. Of
// the two copies of a tied weight only the embedding's counts.
bool counts_unit(const PlannedUnit& unit, const Mesh& mesh, int rank);
// Whether the rank counts a parameter of such a unit: only one tensor rank does if all hold the same values.
bool counts_parameter(const PlannedUnit& unit, const ParameterSpec& parameter, const Coordinates& at);

// The factor that limits the norm of gradients to `largest`; 0: no clipping. The gradients are those of a scaled loss,
// with `square_sum` as the sum of squares. The loss scale is divided out of the norm before the comparison, and out of
// the gradients by the factor. NaN, which skips the step, if `square_sum` is not finite.
double gradient_factor(double square_sum, double largest, double inverse_loss_scale);

// Adds the squares of this rank's counted gradients to sum, [1, 1] float64. Sum it over the world and take the root.
void add_counted_squares(Stream& stream, const PlannedUnit& unit, std::span<const OwnedRows> rows, const Mesh& mesh,
                         int rank, TensorView sum);

}  // namespace weft
