// A picture as one SVG document: a row of lanes and a memory curve for each rank, bubbles hatched, the critical path
// outlined and linked, tooltips as <title>. The document is self-contained, without fonts or scripts.
#pragma once

#include <cstddef>
#include <string>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

// Most boxes of one SVG: viewers draw every one of them, and a box is about 250 bytes of text.
inline constexpr std::size_t svg_box_limit = 20'000;

// Throws Error (request) if `boxes` exceeds svg_box_limit; the message says how to have fewer.
void require_svg_boxes(std::size_t boxes);

// Throws Error (request) like require_svg_boxes.
std::string to_svg(const Picture& picture);

}  // namespace weft
