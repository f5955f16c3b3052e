// Small random problems of reshard timing, of one rank. Units are unequal, ops read two of them or none, weight
// gradients are ops of their own, and the activation curve has no pattern.
#pragma once

#include <random>

#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct RandomTiming {
  bool gradients = true;
  bool large_parameters = false;  // beside gradients
  int least_ops = 8, most_ops = 10;
};

inline TimingProblem random_timing(std::mt19937& random, const RandomTiming& shape) {
  const auto draw = [&random](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  TimingRank rank;
  for (int unit = 0; unit < 3; ++unit) {
    rank.units.push_back({.parameter_bytes = draw(1, 4),
                          .gradient_bytes = shape.gradients ? draw(1, 4) : 0,
                          .gather_seconds = draw(1, 8) / 2.0,
                          .reduce_seconds = draw(1, 8) / 2.0});
    if (shape.large_parameters) rank.units.back().parameter_bytes *= 4;
  }
  const int ops = draw(shape.least_ops, shape.most_ops);
  for (int q = 0; q < ops; ++q) {
    TimingOp op{.first_read = static_cast<int>(rank.read_units.size()),
                .first_add = static_cast<int>(rank.added_units.size()),
                .seconds = draw(1, 6) / 2.0,
                .activation_bytes = draw(0, 3)};
    const int unit = draw(0, 2);
    const bool weight_gradient = shape.gradients && draw(0, 5) == 0;
    if (!weight_gradient) {
      rank.read_units.push_back(unit);
      if (draw(0, 5) == 0) rank.read_units.push_back((unit + 1) % 3);
    }
    if (weight_gradient || (shape.gradients && draw(0, 1) == 0)) rank.added_units.push_back(unit);
    op.reads = static_cast<int>(rank.read_units.size()) - op.first_read;
    op.adds = static_cast<int>(rank.added_units.size()) - op.first_add;
    rank.ops.push_back(op);
  }
  rank.budget = smallest_budget(rank, false) + draw(0, shape.gradients ? 7 : 4);
  return {{rank}};
}

}  // namespace weft
