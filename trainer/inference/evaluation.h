// The loss of a model on held-out text, under any layout, with forwards only.
#pragma once

#include <cstdint>
#include <functional>

#include "trainer/inference/forward_run.h"
#include "trainer/rank/metrics.h"

namespace weft {

class HeldOutWindows;

// Called after each pass with the windows read so far and those of the whole text, on the thread of this process's
// first rank.
using OnWindows = std::function<void(std::int64_t done, std::int64_t all)>;

// Runs the ranks of this process. `text` (held_out.h) is of for_inference(). Each pass reads a global batch of windows;
// the global batch is reduced if the text has fewer windows. `fill_weights` as in ForwardRun. Throws Error with the
// first failure.
HeldOutLoss evaluate(const HeldOutWindows& text, const FillWeights& fill_weights = {},
                     const BackendFactory& make_backend = {}, const OnWindows& on_windows = {});

}  // namespace weft
