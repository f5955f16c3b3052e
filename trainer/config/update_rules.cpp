#include "trainer/config/update_rules.h"

#include <cmath>

#include "parallel/runtime/error.h"

namespace weft {

UpdateFactors update_factors(const GroupStep& step) {
  require(step.step >= 1, "steps count from 1");
  if (step.rule == UpdateRule::muon) fail("{} does not step element by element", name_of(step.rule));
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
  // The learning rate of lamb is applied last. Only adamw and lamb correct their moments.
  const double rate = step.rule == UpdateRule::lamb ? 1.0 : step.learning_rate;
  const bool corrects = step.rule == UpdateRule::adamw || step.rule == UpdateRule::lamb;
  factors.step_size = static_cast<float>(corrects ? rate / first_part : rate);
  factors.decay = static_cast<float>(rate * step.weight_decay);
  return factors;
}

}  // namespace weft
