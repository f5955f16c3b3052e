// Kernels of an export of Nsight Systems (nsys export --type sqlite), each with the action that queued it. The action
// is the innermost range of the domain "weft" on the launching thread at the time of the launch.
#pragma once

#include <string>
#include <vector>

#include "trainer/diagnosis/trace_sum.h"

namespace weft {

// Kernels, memory copies and memory fills. Spans queued outside all ranges are named "outside". `rank` is the index of
// the span's process in the export, from 0. Throws Error (request) if the file is no such export or has no range of a
// run, and in a build without SQLite.
std::vector<TimedSpan> read_nsys_export(const std::string& file);

}  // namespace weft
