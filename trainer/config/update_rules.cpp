#include "trainer/config/update_rules.h"

#include <cmath>

#include "parallel/runtime/error.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

UpdateFactors update_factors(const GroupStep& step) {
  require(step.step >= 1, "steps count from 1");
  const auto exponent = static_cast<double>(step.step);
  // Of the two corrections for moments that start at zero.
  const double first_part = 1.0 - std::pow(step.beta1, exponent), second_part = 1.0 - std::pow(step.beta2, exponent);
  UpdateFactors factors{
      .first_rate = static_cast<float>(1.0 - step.beta1),
      .second_rate = static_cast<float>(1.0 - step.beta2),
      .second_scale = static_cast<float>(1.0 / std::sqrt(second_part)),
      .eps = static_cast<float>(step.eps),
      .momentum = static_cast<float>(step.momentum),
      .learning_rate = static_cast<float>(step.learning_rate),
  };
  switch (step.rule) {
    case UpdateRule::adamw:
      factors.step_size = static_cast<float>(step.learning_rate / first_part);
      factors.decay = static_cast<float>(step.learning_rate * step.weight_decay);
      return factors;
    case UpdateRule::sgd:
    case UpdateRule::lion:
      factors.step_size = static_cast<float>(step.learning_rate);
      factors.decay = static_cast<float>(step.learning_rate * step.weight_decay);
      return factors;
    case UpdateRule::lamb:  // the rate comes last
      factors.step_size = static_cast<float>(1.0 / first_part);
      factors.decay = static_cast<float>(step.weight_decay);
      return factors;
    case UpdateRule::muon:
      break;
  }
  fail("{} does not step element by element", name_of(step.rule));
}

void check_rows(const UpdateRows& rows, UpdateRule rule) {
  const std::int64_t size = rows.parameters.size();
  const auto is_stored = [](DType dtype) { return dtype == DType::float32 || dtype == DType::bfloat16; };
  require(needs_of(rule) != Needs::whole_matrices, "rows are stepped element by element");
  require(rows.gradients.size() == size && rows.gradients.dtype() == DType::float32,
          "gradients are float32 and as many as the parameters");
  require(is_stored(rows.parameters.dtype()) && is_stored(rows.first_state.dtype()),
          "parameters and states are float32 or bfloat16");
  int states = 0;
  for (const TensorView& state : {rows.first_state, rows.second_state}) {
    if (state.empty()) break;
    require(state.size() == size && state.dtype() == rows.first_state.dtype(),
            "states have one dtype and are as many as the parameters");
    ++states;
  }
  require(
      (rows.second_state.empty() || states == 2) && (states == states_of(rule, 0.0) || states == states_of(rule, 1.0)),
      "rows have the states of their rule");
}

}  // namespace weft
