// A picture for the viewers of Chrome's trace format: a process a rank, a thread a lane, numbered and named as in the
// trace of a run (trainer/rank/step_trace.h), so that both can be laid beside each other; memory as a counter by
// bucket.
#pragma once

#include "parallel/pipeline/picture/picture.h"
#include "parallel/runtime/chrome_trace.h"

namespace weft {

// One unit of time of a picture in unit times becomes a second.
ChromeTrace chrome_trace_of(const Picture& picture);

}  // namespace weft
