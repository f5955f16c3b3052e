// The norm of the whole model's gradient, each distinct parameter counted once although replicas, tensor ranks,
// unsharded units and tied stages hold it several times.
#pragma once

#include <span>

#include "parallel/mesh/mesh.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// Whether the rank counts the rows it owns of a unit: one replica does, and of a unit kept whole one rank; of a
// tied weight's two copies the embedding's.
bool counts_unit(const PlannedUnit& unit, const Mesh& mesh, int rank);
// Whether, within such a unit, it counts a parameter: one tensor rank does where every one holds the same values.
bool counts_parameter(const PlannedUnit& unit, const ParameterSpec& parameter, const Coordinates& at);

// What gradients are multiplied by so that their norm is at most `largest`; 1 when `largest` is 0 (no clipping).
double clip_factor(double norm, double largest);
// The same for gradients of a scaled loss, whose squares sum up to `square_sum`: the loss scale is divided out of the
// norm before it is compared, and out of the gradients with the factor. NaN, which skips the step, when `square_sum` is
// not finite.
double gradient_factor(double square_sum, double largest, double inverse_loss_scale);

// sum [1, 1] float64 += the squares of this rank's share. Sum it over the world and take the root.
void add_counted_squares(Stream& stream, const PlannedUnit& unit, std::span<const OwnedRows> rows, const Mesh& mesh,
                         int rank, TensorView sum);

}  // namespace weft
