// Time on a GPU, and nothing else.
#pragma once

#include "parallel/runtime/device.h"

namespace weft {

// Queues one thread that does nothing for so long.
void delay(Stream& stream, double microseconds);

}  // namespace weft
