// What --format svg|html|trace writes: pictures of programs, and costs that a few words give. `command` begins the
// messages of errors.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

bool is_picture_format(std::string_view format);

// The same for every rank: what all its stages take together, shared evenly among them and their segments, or by bytes
// among its units. `words` are forward= backward_input= backward_weight= (each 1 by default), gather= and reduce= (of
// all units once), transfer= (of a message), norm= and step= (each 0), separated by blanks. Throws Error (request).
ProgramCosts costs_from_words(const std::string& command, const Program& program, const std::string& words);

// Throws Error (request) where so many boxes, of all pictures, are more than the format may hold.
void require_drawable(std::string_view format, std::size_t boxes);

// Only a page holds more than one picture. Throws Error (request) for pictures that are too large.
std::string render_pictures(const std::string& command, std::span<const Picture> pictures, std::string_view format);

}  // namespace weft
