// The expected results of a segment, from the double reference and its finite differences, and their tolerances.
#pragma once

#include <functional>

#include "tests/layers/segment_harness.h"

namespace weft {

// The objective of a case is the sum over all microbatches of <y, dy> plus the auxiliary losses, or of the head's
// loss_factor * cross-entropy. Gradients are its central differences.
Outcome expected_outcome(const SegmentCase& the_case, const SegmentInputs& inputs);

// df/dx by central differences, x being changed in place and restored. Step 1e-5: the formula is off by
// step^2 / 6 = 2e-11 of the third derivative. The rounding of f costs 1e-16 |f| / step = 1e-9 at |f| = 100. Both are
// far below float32.
double central_difference(const std::function<double()>& f, double& x);

// The largest |actual - expected| over outputs, gradients and losses, each measured by the largest expected element of
// its tensor. A sum in float32 loses relative to its terms, not to a result that happens to cancel. Where all of a
// tensor is near zero (an expert without tokens) it is measured by 1/16, the size of its terms. Infinite when
// something is missing or not a number.
double largest_relative_error(const Outcome& actual, const Outcome& expected);
double relative_error(const Values& actual, const Values& expected);

double tolerance(const SegmentCase& the_case);

// Every collective that a rank performed is declared for its phase, of the bytes declared, and none besides.
void expect_declared_traffic(const RankOutcome& rank, int microbatches);

}  // namespace weft
