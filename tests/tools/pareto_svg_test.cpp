// Time against memory as a picture, by the geometry that the document has. Labels of random points lie beside their
// marks, inside the axes and clear of each other, of the front's line and of its marks.
#include "tools/picture/pareto_svg.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>

#include "parallel/pipeline/orders/orders.h"

namespace weft {
namespace {

struct Rectangle {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool meets(const Rectangle& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// The number behind `key` in the text from `at`.
double number(const std::string& svg, std::size_t at, const std::string& key) {
  return std::stod(svg.substr(svg.find(key, at) + key.size()));
}

std::vector<std::size_t> places(const std::string& svg, const std::string& text) {
  std::vector<std::size_t> found;
  for (std::size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) found.push_back(at);
  return found;
}

// Of the path with the id "front": rectangles without area, one a stroke.
std::vector<Rectangle> front_strokes(const std::string& svg) {
  const std::size_t path = svg.find("<path id=\"front\"");
  std::istringstream line(svg.substr(svg.find(" d=\"M", path) + 5));
  double x = 0, y = 0, to = 0;
  line >> x >> y;
  std::vector<Rectangle> strokes;
  for (char turn; line >> turn && turn != '"' && line >> to;) {
    const double new_x = turn == 'H' ? to : x, new_y = turn == 'V' ? to : y;
    strokes.push_back({std::min(x, new_x), std::min(y, new_y), std::max(x, new_x), std::max(y, new_y)});
    x = new_x;
    y = new_y;
  }
  return strokes;
}

// Capitals of 10 pixels reach 7.3 above the baseline, descenders 2.4 below it; textLength is what is drawn.
struct Label {
  std::string text;
  Rectangle box;
};
std::vector<Label> labels_of(const std::string& svg) {
  std::vector<Label> labels;
  for (const std::size_t at : places(svg, "class=\"label\"")) {
    const double x = number(svg, at, " x=\""), y = number(svg, at, " y=\"");
    const std::size_t begin = svg.find('>', at) + 1;
    labels.push_back(
        {svg.substr(begin, svg.find('<', begin) - begin), {x, y - 7.3, x + number(svg, at, "textLength=\""), y + 2.4}});
  }
  return labels;
}

// Points of which those that nothing beats are the front.
ParetoPicture random_picture(std::mt19937& random) {
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
  ParetoPicture picture{.title = "random"};
  const int count = up_to(40), range = up_to(2) == 1 ? 12 : 1000;
  for (int i = 0; i < count; ++i) {
    picture.marks.push_back(
        {.series = "1f1b",
         .seconds = up_to(range) * 1e-3,
         .bytes = std::int64_t{up_to(range)} << 20,
         .values = {fmt::format("{:03} {}", i, std::string(static_cast<std::size_t>(up_to(40)), 'w'))}});
  }
  for (ParetoMark& mark : picture.marks) {
    mark.front = std::ranges::none_of(picture.marks, [&](const ParetoMark& other) {
      return other.seconds <= mark.seconds && other.bytes <= mark.bytes &&
             (other.seconds < mark.seconds || other.bytes < mark.bytes);
    });
  }
  return picture;
}

TEST(ParetoSvg, LabelsAreClearOfLineMarksAndEachOther) {
  std::mt19937 random(15);
  std::size_t labelled = 0, fronts = 0;
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const ParetoPicture picture = random_picture(random);
    const std::string svg = to_svg(picture);
    const std::vector<Rectangle> strokes = front_strokes(svg);
    const std::vector<Label> labels = labels_of(svg);
    std::vector<Rectangle> marks;
    for (const std::size_t at : places(svg, "class=\"mark front\"")) {
      const double x = number(svg, at, "translate("), y = number(svg, svg.find("translate(", at), " ");
      marks.push_back({x - 4, y - 4, x + 4, y + 4});
    }
    fronts += marks.size();
    labelled += labels.size();
    ASSERT_FALSE(strokes.empty());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const Rectangle& box = labels[i].box;
      EXPECT_TRUE(box.left > 96 && box.right < 960 - 176 && box.top > 56 && box.bottom < 600 - 64) << labels[i].text;
      for (const Rectangle& stroke : strokes) EXPECT_FALSE(box.meets(stroke)) << labels[i].text;
      for (const Rectangle& mark : marks) EXPECT_FALSE(box.meets(mark)) << labels[i].text;
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(box.meets(labels[j].box)) << labels[i].text;
      // Some mark is near enough to be the one that is meant.
      EXPECT_TRUE(std::ranges::any_of(marks, [&](const Rectangle& mark) {
        return box.meets({mark.left - 8, mark.top - 40, mark.right + 8, mark.bottom + 40});
      })) << labels[i].text;
    }
  }
  EXPECT_GT(labelled, fronts / 2) << "of " << fronts;
}

TEST(ParetoSvg, TheAxisSaysWhatItIs) {
  ParetoPicture picture{.title = "one", .marks = {{.series = "1f1b", .seconds = 1.0, .bytes = 1 << 20, .front = true}}};
  EXPECT_NE(to_svg(picture).find(">time of a step<"), std::string::npos);
  picture.unit_time = true;
  EXPECT_NE(to_svg(picture).find(">time of a step, units<"), std::string::npos);
}

TEST(ParetoSvg, DistinguishingValuesAreThoseThatDiffer) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(distinguishing({{"a", "x", "1"}, {"b", "x", "1"}, {"a", "x", "2"}}), (Labels{"a, 1", "b, 1", "a, 2"}));
  EXPECT_EQ(distinguishing({{"a", "x"}, {"a", "x"}}), (Labels{"a", "a"}));
  EXPECT_EQ(distinguishing({}), Labels{});
}

// A mark has the style of its schedule's row, and one behind the table is of a file.
TEST(ParetoMarks, HaveAShapeForEverySchedule) {
  EXPECT_GT(mark_shapes, schedules().size());
  std::set<std::string> shapes;
  for (std::size_t style = 0; style < mark_shapes; ++style) {
    const std::string svg =
        to_svg({.title = "one", .marks = {{.series = "one", .style = style, .seconds = 1, .bytes = 1}}});
    const std::size_t at = svg.find("<path d=\"M", svg.find("class=\"mark"));
    ASSERT_NE(at, std::string::npos) << svg;
    shapes.insert(svg.substr(at, svg.find('Z', at) - at));
  }
  EXPECT_EQ(shapes.size(), mark_shapes);
}

}  // namespace
}  // namespace weft
