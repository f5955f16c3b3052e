// Kernels of an export of Nsight Systems (nsys export --type sqlite), each with the action that queued it: the range of
// the domain "weft" that was innermost on the thread when it was launched.
#pragma once

#include <string>
#include <vector>

#include "trainer/diagnosis/trace_sum.h"

namespace weft {

// Kernels, copies and fills of memory; what was queued outside of all ranges is named "outside". `rank` is the number
// of its process in the export, from 0. Throws Error (request) where the file is no such export, or holds no range of a
// run, and in a build without SQLite.
std::vector<TimedSpan> read_nsys_export(const std::string& file);

}  // namespace weft
