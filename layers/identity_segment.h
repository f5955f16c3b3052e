// The segment of a stage without blocks: returns activations and gradients unchanged. It has no parameters and keeps
// nothing.
#pragma once

#include <memory>

#include "layers/segment.h"

namespace weft {

// "stage.3.passage"
std::unique_ptr<Segment> make_identity_segment(int stage);

}  // namespace weft
