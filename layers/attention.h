// The attention part of a block: x + o_proj(attention(rotary(qkv(norm(x))))). Heads are split over the tensor group.
#pragma once

#include "layers/segment.h"

namespace weft {

std::unique_ptr<Segment> make_attention(const SegmentSetup& setup, int block);

}  // namespace weft
