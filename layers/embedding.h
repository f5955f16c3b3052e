// The embedding with vocabulary parallelism: each tensor rank holds a balanced, possibly uneven run of vocabulary rows.
#pragma once

#include "layers/segment.h"

namespace weft {

std::unique_ptr<Segment> make_embedding(const SegmentSetup& setup);

}  // namespace weft
