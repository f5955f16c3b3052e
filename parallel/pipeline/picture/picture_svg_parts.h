// What a picture in SVG is made of beside its boxes: the colours and textures, the legend, the words of tooltips.
#pragma once

#include <string>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

// <style> and <defs>. A box of kind k and chunk c has the class kKcC, a bucket of memory mB, an idle stretch idleR.
std::string style_and_textures(const Picture& picture);

// In rows from `top`, between `left` and `right`; `bottom` is where it ends.
std::string legend(const Picture& picture, double left, double top, double right, double& bottom);

// Escaped; a line each for the action, the unit or segment, bytes, times and what it waited for.
std::string tooltip(const Picture& picture, const PictureBox& box);
std::string tooltip(const Picture& picture, const PictureIdle& idle);

}  // namespace weft
