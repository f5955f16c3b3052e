// Time against memory as one SVG document: a mark a result, the front of those that nothing beats as a line.
// Series differ in colour and in shape. Needs nothing from elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct ParetoMark {
  std::string series;
  std::size_t style = 0;  // of the series: one number looks alike in every picture
  double seconds = 0.0;
  std::int64_t bytes = 0;
  bool front = false;
  // Beside a mark of the front, where there is room that neither the front's line, its marks nor other labels take.
  std::string label = {};
  std::string tooltip = {};  // lines of text
};

struct ParetoPicture {
  std::string title;
  bool unit_time = false;  // seconds are units of the costs
  std::vector<ParetoMark> marks = {};
};

std::string to_svg(const ParetoPicture& picture);

// Labels of points that have a row of values each, the same ones in the same order: of each row the values that are not
// alike in all rows, or the first value where all are.
std::vector<std::string> distinguishing(const std::vector<std::vector<std::string>>& rows);

}  // namespace weft
