// The parts of an SVG picture except its boxes: colours and textures, legend, words of tooltips.
#pragma once

#include <string>

#include "tools/picture/picture.h"

namespace weft {

// <style> and <defs>. A box of kind k and chunk c has the class kKcC, a bucket of memory mB, an idle stretch idleR.
std::string style_and_textures(const Picture& picture);

// Rows from `top`, between `left` and `right`; sets `bottom` to the end of the legend.
std::string legend(const Picture& picture, double left, double top, double right, double& bottom);

// Escaped text, one line each for the action, the unit or segment, bytes, times and the reason of its wait.
std::string tooltip(const Picture& picture, const PictureBox& box);
std::string tooltip(const Picture& picture, const PictureIdle& idle);

}  // namespace weft
