// Runs an attention graph in double precision, one operation after the other in plain loops. What a graph computes here
// is what cuDNN is asked for, up to rounding.
#pragma once

#include "tests/layers/attention_case.h"

namespace weft {

// Throws Error where an operation reads what nobody wrote (NaN counts as unwritten) or shapes do not fit.
void interpret(const AttentionGraph& graph, const AttentionPlaces& places);

}  // namespace weft
