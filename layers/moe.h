// The mixture-of-experts part of a block: x + sum over the chosen experts of probability * expert(norm(x)), plus a
// shared expert if the model has one. Dropless: every choice is computed, whatever the load.
#pragma once

#include "layers/segment.h"

namespace weft {

std::unique_ptr<Segment> make_moe(const SegmentSetup& setup, int block);

}  // namespace weft
