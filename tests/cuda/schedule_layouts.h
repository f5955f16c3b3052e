// Layouts of pipelines whose ranks wait for each other in all the ways there are.
#pragma once

#include <vector>

#include "tests/trainer/tiny_layout.h"

namespace weft {

// Every schedule of several stages a rank or of parted backwards, on 2 ranks with one residency after the other, and on
// 4. From 3 ranks on a rank receives and sends on one lane.
std::vector<TinyLayout> schedule_layouts();

}  // namespace weft
