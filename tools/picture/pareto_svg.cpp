#include "tools/picture/pareto_svg.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/quantities.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

// Sizes in pixels.
constexpr double width = 960, height = 600, left = 96, right = 176, top = 56, bottom = 64;
constexpr double mark_radius = 5, character_width = 5.8, line_height = 12, descent = 2.5;

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// The range from least to most, with some room at either end.
struct Axis {
  double least = 0, most = 1;
  Axis(double from, double to) : least(from), most(to) {
    const double room = to > from ? 0.06 * (to - from) : std::max(0.05 * to, 1e-12);
    least = std::max(0.0, from - room);
    most = to + room;
  }
  double part(double value) const { return (value - least) / (most - least); }
};

// A mark's path around the origin.
std::string_view shape_path(std::size_t style) {
  constexpr std::array<std::string_view, mark_shapes> shapes = {"M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z",
                                                                "M-4.5 -4.5h9v9h-9Z",
                                                                "M0 -5.5L5.5 4.5H-5.5Z",
                                                                "M0 -6L6 0L0 6L-6 0Z",
                                                                "M0 5.5L5.5 -4.5H-5.5Z",
                                                                "M-2 -5.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5Z",
                                                                "M-6 -2.5h12v5h-12Z",
                                                                "M-2.5 -6h5v12h-5Z",
                                                                "M-5 -5.5H5L-5 5.5H5Z",
                                                                "M-5.5 -5V5L5.5 -5V5Z",
                                                                "M0 -6L6 -1.5L3.5 5.5H-3.5L-6 -1.5Z",
                                                                "M-5.5 -5.5h11v3.5h-3.5v7.5h-4v-7.5h-3.5Z",
                                                                "M-5.5 5.5h11v-3.5h-3.5v-7.5h-4v7.5h-3.5Z",
                                                                "M-5.5 -5.5v11h3.5v-3.5h7.5v-4h-7.5v-3.5Z",
                                                                "M0 6L6 1.5L3.5 -5.5H-3.5L-6 1.5Z",
                                                                "M-6 -5L0 -1L6 -5V5L0 1L-6 5Z"};
  return shapes[style % shapes.size()];
}

class ParetoPainter {
 public:
  explicit ParetoPainter(const ParetoPicture& picture)
      : picture_(picture), seconds_(ends(&ParetoMark::seconds)), bytes_(ends(&ParetoMark::bytes)) {}

  std::string document() {
    axes();
    front_line();
    // Marks of the front are drawn above the others.
    for (const bool front : {false, true}) {
      for (const ParetoMark& mark : picture_.marks) {
        if (mark.front == front) draw(mark);
      }
    }
    labels();
    legend();
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
               "{1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\" role=\"img\">\n"
               "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
               "<text x=\"{3}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{2}</text>\n"
               "<text x=\"{3}\" y=\"40\" fill=\"#444\">{4} marks, a different result each; nothing beats those on the "
               "line in both time and "
               "memory</text>\n",
               width, height, escaped_markup(picture_.title), left, picture_.marks.size()) +
           text_ + "</svg>\n";
  }

 private:
  template <typename Number>
  Axis ends(Number ParetoMark::*number) const {
    if (picture_.marks.empty()) return {0, 0};
    const auto [least, most] = std::ranges::minmax_element(picture_.marks, {}, number);
    return {static_cast<double>((*least).*number), static_cast<double>((*most).*number)};
  }
  double x(const ParetoMark& mark) const { return x_at(mark.seconds); }
  double y(const ParetoMark& mark) const { return y_at(static_cast<double>(mark.bytes)); }
  double x_at(double seconds) const { return left + seconds_.part(seconds) * (width - left - right); }
  double y_at(double bytes) const { return height - bottom - bytes_.part(bytes) * (height - top - bottom); }
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  void axes() {
    const double floor = height - bottom, end = width - right;
    const double step = mark_distance(seconds_.most - seconds_.least, 8);
    for (double at = step * std::ceil(seconds_.least / step); at <= seconds_.most; at += step) {
      put("<line stroke=\"#ddd\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n"
          "<text text-anchor=\"middle\" x=\"{0:.1f}\" y=\"{3}\">{4}</text>\n",
          x_at(at), top, floor, floor + 16, format_time(at, picture_.unit_time));
    }
    // Round numbers in the unit of the largest value.
    double unit = 1;
    while (bytes_.most / unit >= 1024.0) unit *= 1024.0;
    const double distance = unit * mark_distance((bytes_.most - bytes_.least) / unit, 8);
    for (double at = distance * std::ceil(bytes_.least / distance); at <= bytes_.most; at += distance) {
      put("<line stroke=\"#ddd\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n"
          "<text text-anchor=\"end\" x=\"{3}\" y=\"{4:.1f}\">{5}</text>\n",
          left, end, y_at(at), left - 6, y_at(at) + 4, format_bytes(static_cast<std::int64_t>(at)));
    }
    put("<path fill=\"none\" stroke=\"#444\" d=\"M{0} {1}V{2}H{3}\"/>\n", left, top, floor, end);
    put("<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", (left + end) / 2, height - 22,
        picture_.unit_time ? "time of a step, units" : "time of a step");
    put("<text text-anchor=\"middle\" transform=\"translate(18 {:.1f}) rotate(-90)\">peak of the fullest rank</text>\n",
        (top + floor) / 2);
  }

  std::vector<const ParetoMark*> front() const {
    std::vector<const ParetoMark*> marks;
    for (const ParetoMark& mark : picture_.marks) {
      if (mark.front) marks.push_back(&mark);
    }
    std::ranges::stable_sort(marks, {}, &ParetoMark::seconds);
    return marks;
  }

  // Results that the front beats lie above and to the right of the line.
  void front_line() {
    const auto marks = front();
    if (marks.empty()) return;
    std::string path = fmt::format("M{:.1f} {:.1f}", x(*marks.front()), top);
    for (const ParetoMark* mark : marks) path += fmt::format("H{:.1f}V{:.1f}", x(*mark), y(*mark));
    put("<path id=\"front\" fill=\"none\" stroke=\"#444\" stroke-width=\"1.5\" stroke-dasharray=\"5 3\" "
        "d=\"{}H{:.1f}\"/>\n",
        path, width - right);
  }

  void draw(const ParetoMark& mark) {
    put("<g class=\"mark{0}\" transform=\"translate({1:.1f} {2:.1f})\"><title>{3}</title><path d=\"{4}\" fill=\"{5}\" "
        "stroke=\"{6}\" fill-opacity=\"{7}\"/></g>\n",
        mark.front ? " front" : "", x(mark), y(mark), escaped_markup(mark.tooltip), shape_path(mark.style),
        series_colour(mark.style).hex(), mark.front ? "#000" : "#fff", mark.front ? "1" : "0.55");
  }

  void labels() {
    std::vector<Box> taken = front_boxes();
    for (const ParetoMark* mark : front()) taken.push_back(around(*mark));
    std::vector<std::vector<std::string>> values;
    for (const ParetoMark& mark : picture_.marks) values.push_back(mark.values);
    const std::vector<std::string> labels = distinguishing(values);
    for (const ParetoMark* mark : front()) {
      const std::string& label = labels[static_cast<std::size_t>(mark - picture_.marks.data())];
      const std::optional<Box> box = free_box(*mark, label.size(), taken);
      if (!box) continue;
      taken.push_back(*box);
      // textLength makes every font as wide as the box.
      put("<text class=\"label\" font-size=\"10\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\" "
          "textLength=\"{:.1f}\" lengthAdjust=\"spacingAndGlyphs\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
          box->right - box->left, box->left, box->bottom - descent, escaped_markup(label));
    }
  }

  // The first place beside a mark that is inside the picture and clear of `taken`. Places below and to the left come
  // first, because the front's line runs above and to the right. Without a free place, only the tooltip has the text.
  std::optional<Box> free_box(const ParetoMark& mark, std::size_t characters, const std::vector<Box>& taken) const {
    using Place = std::pair<double, double>;
    constexpr std::array<Place, 12> places = {Place{-1, 1},   Place{-1, 0},   Place{1, 1},    Place{1, -1},
                                              Place{-1, 2.2}, Place{1, 2.2},  Place{1, -2.2}, Place{-1, 3.4},
                                              Place{1, 3.4},  Place{1, -3.4}, Place{-1, -1},  Place{-1, -2.2}};
    const double length = character_width * static_cast<double>(characters);
    for (const auto& [dx, dy] : places) {
      const double from = dx > 0 ? x(mark) + 8 : x(mark) - 8 - length;
      const double middle = y(mark) + dy * line_height * 0.9;
      const Box box{from, middle - line_height / 2, from + length, middle + line_height / 2};
      const bool inside = box.left > left && box.right < width - right && box.top > top && box.bottom < height - bottom;
      if (inside && std::ranges::none_of(taken, [&](const Box& other) { return other.meets(box); })) return box;
    }
    return std::nullopt;
  }

  // Boxes around the segments of the front's line.
  std::vector<Box> front_boxes() const {
    std::vector<Box> boxes;
    double from_y = top;
    const ParetoMark* before = nullptr;
    for (const ParetoMark* mark : front()) {
      if (before != nullptr) boxes.push_back({x(*before), y(*before) - 1, x(*mark), y(*before) + 1});
      boxes.push_back({x(*mark) - 1, std::min(from_y, y(*mark)), x(*mark) + 1, std::max(from_y, y(*mark))});
      from_y = y(*mark);
      before = mark;
    }
    if (before != nullptr) boxes.push_back({x(*before), y(*before) - 1, width - right, y(*before) + 1});
    return boxes;
  }

  Box around(const ParetoMark& mark) const {
    return {x(mark) - mark_radius, y(mark) - mark_radius, x(mark) + mark_radius, y(mark) + mark_radius};
  }

  void legend() {
    std::map<std::size_t, std::string> series;
    for (const ParetoMark& mark : picture_.marks) series.try_emplace(mark.style, mark.series);
    double y = top + 12;
    for (const auto& [style, name] : series) {
      put("<g transform=\"translate({:.1f} {:.1f})\"><path d=\"{}\" fill=\"{}\"/><text x=\"12\" "
          "y=\"4\">{}</text></g>\n",
          width - right + 24, y, shape_path(style), series_colour(style).hex(), escaped_markup(name));
      y += 20;
    }
  }

  const ParetoPicture& picture_;
  Axis seconds_, bytes_;
  std::string text_;
};

}  // namespace

std::vector<std::string> distinguishing(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> labels;
  for (const auto& row : rows) {
    std::vector<std::string> differing;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (std::ranges::any_of(rows, [&](const auto& other) { return other[i] != row[i]; })) differing.push_back(row[i]);
    }
    if (differing.empty() && !row.empty()) differing = {row.front()};
    labels.push_back(fmt::format("{}", fmt::join(differing, ", ")));
  }
  return labels;
}

std::size_t style_of_schedule(std::string_view name) {
  const auto known = schedules();
  return static_cast<std::size_t>(std::ranges::find(known, name, &Schedule::name) - known.begin());
}

std::string to_svg(const ParetoPicture& picture) {
  return ParetoPainter(picture).document();
}

}  // namespace weft
