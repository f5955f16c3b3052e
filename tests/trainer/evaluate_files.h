// evaluate() of all windows of files, of training.sequence_length tokens.
#pragma once

#include <string>
#include <vector>

#include "trainer/inference/forward_run.h"
#include "trainer/rank/forward_plan.h"
#include "trainer/run/held_out.h"

namespace weft {

inline HeldOutLoss evaluate(const Config& trained, const std::vector<std::string>& files,
                            const FillWeights& fill_weights = {}, const BackendFactory& make_backend = {},
                            const OnWindows& on_windows = {}) {
  return evaluate(HeldOutWindows(for_inference(trained), files, /*most=*/0, "--data"), fill_weights, make_backend,
                  on_windows);
}

}  // namespace weft
