// The dense part of a block: x + mlp(norm(x)).
#pragma once

#include "layers/segment.h"

namespace weft {

std::unique_ptr<Segment> make_mlp(const SegmentSetup& setup, int block);

}  // namespace weft
