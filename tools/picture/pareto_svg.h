// Time against memory as one SVG document: a mark per result, and a line for the front of results that no other beats.
// Series differ in colour and in shape. The document needs no other files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Shapes of marks; styles repeat from there on. Every schedule and one from a file look different while there are more
// shapes than schedules (tests/tools/pareto_svg_test.cpp).
inline constexpr std::size_t mark_shapes = 16;

struct ParetoMark {
  std::string series;
  std::size_t style = 0;  // of the series (style_of_schedule); equal numbers look alike in every picture
  double seconds = 0.0;
  std::int64_t bytes = 0;
  bool front = false;
  // As many in all marks. Those that tell a mark of the front from others are its label. It is shown where there is
  // room outside the front's line, its marks and other labels.
  std::vector<std::string> values = {};
  std::string tooltip = {};  // lines of text
};

struct ParetoPicture {
  std::string title;
  bool unit_time = false;  // seconds are units of the costs
  std::vector<ParetoMark> marks = {};
};

std::string to_svg(const ParetoPicture& picture);

// The row of the schedule in their table. Schedules from files come after the named ones.
std::size_t style_of_schedule(std::string_view name);

// Labels for rows of values, where equal positions have equal meaning. A label has the values of its row that are not
// equal in all rows, or the first value if all are equal.
std::vector<std::string> distinguishing(const std::vector<std::vector<std::string>>& rows);

}  // namespace weft
