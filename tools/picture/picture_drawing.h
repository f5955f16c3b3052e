// The parts of a picture that every drawing of it shows: lanes below each other with boxes, labels and texts, their
// paints and the legend. An SVG and a page differ in pixels a second and in the parts that move. Plain values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tools/picture/picture.h"
#include "tools/picture/picture_style.h"

namespace weft {

struct Paint {
  std::string name;  // a class of an SVG
  Colour colour;
  Texture texture = Texture::plain;
  double strength = texture_strength;
};

// Paints are indices of `Drawing::paints`.
struct LegendEntry {
  std::vector<int> paints;  // of its swatches
  std::string text;
  double width = 18, height = 12;  // pixels of a swatch
};

struct PictureFigure {
  std::string name;
  double value = 0.0;  // the lowest of several drawings is the best; 0 is not worth a word
  std::string text;
};

struct DrawnBox {
  double start = 0.0, end = 0.0;  // seconds
  int paint = 0;
  std::string what, why;  // lines of its text, in front of its times and behind them; `why` may be empty
  bool mark = false;      // a line at `start`
  bool idle = false;      // no action
  bool critical = false;
};

// Over one box or several, which are computations of one action of a stage.
struct DrawnLabel {
  double start = 0.0, end = 0.0;
  int paint = 0;
  std::string text;
};

struct DrawnLane {
  std::string name;
  std::string_view group;            // what a page can switch off: "compute", "gathers", "memory"
  std::size_t row = 0;               // index of `Drawing::rows`
  double height = 0.0, gap = 0.0;    // pixels, of the lane and below it
  std::vector<DrawnBox> boxes = {};  // by start; they overlap nowhere, except marks. Memory has none
  std::vector<DrawnLabel> labels = {};
};

struct DrawnRow {
  int rank = 0;
  std::string name;                       // "rank 0", "rank 0, measured,"
  std::string peak;                       // bytes, as text
  std::vector<MemorySample> memory = {};  // empty without a lane of it
};

// A line along the critical path, from the end of a box to the start of another.
struct DrawnLink {
  std::size_t from_lane = 0, to_lane = 0;
  double from = 0.0, to = 0.0;  // seconds
};

struct Drawing {
  std::string title;
  bool unit_time = false;
  double seconds = 0.0;
  std::int64_t highest_bytes = 0;      // 0 without memory
  std::vector<PictureFigure> figures;  // step and bubble first
  std::vector<Paint> paints;
  int first_bucket = 0;  // paint of the lowest bucket of memory, which the others follow
  std::vector<LegendEntry> legend;
  std::vector<DrawnRow> rows;
  std::vector<DrawnLane> lanes;  // from the top; those of a rank stand together
  std::vector<DrawnLink> links;
};

Drawing drawing_of(const Picture& picture);

}  // namespace weft
