// What a stage without blocks does: hands on what it is given, both ways. It has no parameters and keeps nothing.
#pragma once

#include <memory>

#include "layers/segment.h"

namespace weft {

// "stage.3.passage"
std::unique_ptr<Segment> make_passage(int stage);

}  // namespace weft
