#include "trainer/config/update_rules.h"

#include <cmath>

#include "parallel/runtime/error.h"

namespace weft {

UpdateFactors update_factors(const GroupStep& step) {
  require(step.step >= 1, "steps count from 1");
  const auto exponent = static_cast<double>(step.step);
  // Bias corrections of the two moments, which start at zero.
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
    case UpdateRule::lamb:  // the learning rate is applied last
      factors.step_size = static_cast<float>(1.0 / first_part);
      factors.decay = static_cast<float>(step.weight_decay);
      return factors;
    case UpdateRule::muon:
      break;
  }
  fail("{} does not step element by element", name_of(step.rule));
}

}  // namespace weft
