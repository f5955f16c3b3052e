// Pictures of programs for --format svg|html|trace, and costs from a few words. `command` begins error messages.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

bool is_picture_format(std::string_view format);

// Costs that are the same for every rank. `words` are separated by blanks. forward=, backward_input= and
// backward_weight= (each 1 by default) are costs of all stages of a rank together, shared evenly among stages and their
// segments. gather= and reduce= are costs of all units of a rank once, shared by bytes; transfer= is that of a message.
// These, norm= and step= are 0 by default. Throws Error (request).
ProgramCosts costs_from_words(const std::string& command, const Program& program, const std::string& words);

// Throws Error (request) if so many boxes, over all pictures, exceed the limit of the format.
void require_drawable(std::string_view format, std::size_t boxes);

// Only HTML holds more than one picture. Throws Error (request) for pictures that are too large.
std::string render_pictures(const std::string& command, std::span<const Picture> pictures, std::string_view format);

}  // namespace weft
