// A picture for the viewers of Chrome's trace format: one process per rank, one thread per lane, with the numbers and
// names of a run's trace (trainer/rank/step_trace.h), so that both can be compared. Memory is a counter per bucket.
#pragma once

#include "parallel/pipeline/picture/picture.h"
#include "parallel/runtime/chrome_trace.h"

namespace weft {

// One unit of time becomes a second if the picture is in unit times.
ChromeTrace chrome_trace_of(const Picture& picture);

}  // namespace weft
