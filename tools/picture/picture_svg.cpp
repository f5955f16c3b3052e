#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "parallel/runtime/quantities.h"
#include "tools/picture/picture_drawing.h"
#include "tools/picture/picture_formats.h"

namespace weft {
namespace {

// Pixels.
constexpr double left_margin = 132, right_margin = 28, least_width = 1200, most_width = 12'000, readable_box = 21;
constexpr double header = 50, axis_height = 24, legend_row = 17, swatch = 20, rank_gap = 10;
constexpr double character = 6.4;  // widest character of a label

constexpr std::string_view rules =
    ".box{stroke:#fff;stroke-width:.8}\n.lane{fill:#f2f2f2}\n.grid{stroke:#000;stroke-opacity:.13}\n"
    ".mark{text-anchor:middle;fill:#333;font-size:10px}\n.side{text-anchor:end;fill:#333}\n"
    ".rank{font-weight:bold}\n.small{font-size:9px}\n.in{text-anchor:middle;paint-order:stroke;stroke-width:2.4px;"
    "stroke-linejoin:round}\n.drop{stroke:#000;stroke-width:1.2}\n"
    ".link{stroke:#000;stroke-width:1.1;stroke-opacity:.6;fill:none}\n.ground{stroke:#555;stroke-width:.8}\n"
    ".curve{stroke:#fff;stroke-width:.7}\n";

bool computes(const DrawnLane& lane) {
  return lane.group == "compute";
}

// A width at which half of the computations have room for their microbatch.
double width_of(const Drawing& drawing) {
  std::vector<double> lengths;
  for (const DrawnLane& lane : drawing.lanes) {
    for (const DrawnBox& box : lane.boxes) {
      if (computes(lane) && !box.idle) lengths.push_back(box.end - box.start);
    }
  }
  if (lengths.empty()) return least_width;
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return std::clamp(drawing.seconds / *middle * readable_box, least_width, most_width);
}

class SvgPainter {
 public:
  explicit SvgPainter(const Drawing& drawing)
      : drawing_(drawing),
        width_(width_of(drawing)),
        scale_(drawing.seconds > 0.0 ? width_ / drawing.seconds : 0.0),
        mark_step_(mark_distance(drawing.seconds, static_cast<int>(width_ / 90))) {}

  std::string document() {
    style();
    heading();
    const double top = legend() + axis_height, bottom = place_lanes(top);
    axis(top, bottom);
    lanes();
    for (const DrawnLink& link : drawing_.links) {
      put("<path class=\"link\" d=\"M{:.2f} {:.1f}L{:.2f} {:.1f}\"/>\n", x(link.from), lower_edge(link.from_lane) - 1.5,
          x(link.to), lower_edge(link.to_lane) - 1.5);
    }
    axis_marks(bottom + 14);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
               "{1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\" role=\"img\">\n"
               "<title>{2}</title>\n",
               left_margin + width_ + right_margin, bottom + axis_height, escaped_markup(drawing_.title)) +
           text_ + "</svg>\n";
  }

 private:
  double x(double seconds) const { return left_margin + scale_ * seconds; }
  double lower_edge(std::size_t lane) const { return tops_[lane] + drawing_.lanes[lane].height; }
  std::string time(double seconds) const { return format_time(seconds, drawing_.unit_time); }
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  // A paint is a class that fills: with a colour, or with a pattern if it has a texture.
  void style() {
    std::string classes, patterns;
    for (const Paint& paint : drawing_.paints) {
      if (paint.texture == Texture::plain) {
        classes += fmt::format(".{}{{fill:{}}}\n", paint.name, paint.colour.hex());
        continue;
      }
      classes += fmt::format(".{0}{{fill:url(#t-{0})}}\n", paint.name);
      patterns += fmt::format(
          "<pattern id=\"t-{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" "
          "height=\"6\" fill=\"{}\"/><path d=\"{}\" stroke=\"#000\" stroke-opacity=\"{}\" "
          "stroke-width=\"1.3\"/></pattern>\n",
          paint.name, paint.colour.hex(), strokes_of(paint.texture), paint.strength);
    }
    put("<style>\n{}{}</style>\n<defs>\n{}</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", rules,
        classes, patterns);
  }

  void heading() {
    std::string figures;
    for (std::size_t i = 0; i < drawing_.figures.size(); ++i) {
      const PictureFigure& figure = drawing_.figures[i];
      if (i < 2 || figure.value > 0.0) figures += fmt::format("{}{} {}", i > 0 ? ", " : "", figure.name, figure.text);
    }
    put("<text x=\"{0}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{1}</text>\n<text x=\"{0}\" "
        "y=\"38\">{2}</text>\n",
        left_margin, escaped_markup(drawing_.title), figures);
  }

  // Returns its end.
  double legend() {
    double at = left_margin, y = header;
    for (const LegendEntry& entry : drawing_.legend) {
      const double text_at = swatch * static_cast<double>(entry.paints.size()) + 3;
      const double width = text_at + 6.6 * static_cast<double>(entry.text.size()) + 19;
      if (at > left_margin && at + width > left_margin + width_) {
        at = left_margin;
        y += legend_row;
      }
      for (std::size_t i = 0; i < entry.paints.size(); ++i) {
        put("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\"/>\n", paint(entry.paints[i]).name,
            at + swatch * static_cast<double>(i) + 9 - entry.width / 2, y + 6 - entry.height / 2, entry.width,
            entry.height);
      }
      put("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", at + text_at, y + 10, escaped_markup(entry.text));
      at += width;
    }
    return y + legend_row + 4;
  }

  const Paint& paint(int number) const { return drawing_.paints[static_cast<std::size_t>(number)]; }

  // Returns the end of the lowest.
  double place_lanes(double top) {
    double y = top;
    const bool dense = drawing_.lanes.size() == drawing_.rows.size();
    for (std::size_t lane = 0; lane < drawing_.lanes.size(); ++lane) {
      if (lane > 0 && rank_of(lane) != rank_of(lane - 1)) y += dense ? 2 : rank_gap;
      tops_.push_back(y);
      y += drawing_.lanes[lane].height + drawing_.lanes[lane].gap;
    }
    return y + (dense ? 2 : rank_gap);
  }
  int rank_of(std::size_t lane) const { return drawing_.rows[drawing_.lanes[lane].row].rank; }

  void axis(double top, double bottom) {
    axis_marks(top - 8);
    for (int i = 0; i * mark_step_ <= drawing_.seconds * (1 + 1e-9); ++i) {
      put("<line class=\"grid\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", x(i * mark_step_),
          top - 4, bottom + 2);
    }
  }

  void axis_marks(double baseline) {
    for (int i = 0; i * mark_step_ <= drawing_.seconds * (1 + 1e-9); ++i) {
      put("<text class=\"mark\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n", x(i * mark_step_), baseline,
          time(i * mark_step_));
    }
    put("<text class=\"side\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", left_margin - 22, baseline,
        drawing_.unit_time ? "time, units" : "time");
  }

  void lanes() {
    std::optional<int> rank;
    for (std::size_t i = 0; i < drawing_.lanes.size(); ++i) {
      const DrawnLane& lane = drawing_.lanes[i];
      if (rank != rank_of(i)) put("{}<g id=\"rank{}\">\n", rank ? "</g>\n" : "", rank_of(i));
      rank = rank_of(i);
      if (lane.group == "memory") {
        memory(lane, tops_[i]);
      } else {
        timeline(lane, tops_[i]);
      }
    }
    if (rank) put("</g>\n");
  }

  void timeline(const DrawnLane& lane, double y) {
    put("<rect class=\"lane\" x=\"{}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>\n", left_margin, y, width_,
        lane.height);
    put("<text class=\"side {}\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", computes(lane) ? "rank" : "small", left_margin - 6,
        y + lane.height / 2 + (computes(lane) ? 4 : 3), lane.name);
    for (const DrawnBox& box : lane.boxes) draw(box, y, lane.height);
    for (const DrawnLabel& label : lane.labels) write(label, y, lane.height, computes(lane) ? 11 : 8);
    for (const DrawnBox& box : lane.boxes) {
      if (!box.critical || box.mark) continue;
      put("<rect class=\"critical\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"3\"/>\n", x(box.start),
          y + lane.height - 3, scale_ * (box.end - box.start));
    }
  }

  void draw(const DrawnBox& box, double y, double height) {
    const std::string title =
        fmt::format("<title>{}\n{} to {}: {}{}{}</title>", escaped_markup(box.what), time(box.start), time(box.end),
                    time(box.end - box.start), box.why.empty() ? "" : "\n", escaped_markup(box.why));
    if (box.mark) {
      put("<path class=\"drop\" d=\"M{:.2f} {:.1f}v{}\">{}</path>\n", x(box.start), y - 1, height + 2, title);
    } else {
      put("<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\">{}</rect>\n",
          box.idle ? "" : "box ", paint(box.paint).name, x(box.start), y, scale_ * (box.end - box.start), height,
          title);
    }
  }

  // Where there is room.
  void write(const DrawnLabel& label, double y, double height, double font) {
    const double width = scale_ * (label.end - label.start);
    if (static_cast<double>(label.text.size()) * character * font / 11 + 2 > width) return;
    const Colour under = paint(label.paint).colour;
    put("<text class=\"in\" x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\" stroke=\"{}\">{}</text>\n",
        x(label.start) + width / 2, y + height / 2 + font * 0.36, font, text_colour_on(under).hex(), under.hex(),
        escaped_markup(label.text));
  }

  // Each path is the sum of the buckets up to its own. The highest is painted first, the others over it.
  void memory(const DrawnLane& lane, double y) {
    const DrawnRow& row = drawing_.rows[lane.row];
    const double ground = y + lane.height, per_byte = (lane.height - 4) / static_cast<double>(drawing_.highest_bytes);
    for (int bucket = curve_bucket_count - 1; bucket >= 0; --bucket) {
      const auto bytes_in = [style = bucket_style(bucket)](const MemorySample& sample) { return style.bytes(sample); };
      std::string outline;
      for (const MemorySample& sample : row.memory) {
        std::int64_t bytes = 0;
        for (int below = 0; below <= bucket; ++below) bytes += bucket_style(below).bytes(sample);
        fmt::format_to(std::back_inserter(outline), "{}{:.2f}V{:.3f}", outline.empty() ? "" : "H", x(sample.time),
                       ground - per_byte * static_cast<double>(bytes));
      }
      put("<path class=\"curve {}\" d=\"M{:.2f} {:.2f}H{}H{:.2f}V{:.2f}Z\"><title>{}: {}</title></path>\n",
          paint(drawing_.first_bucket + bucket).name, x(row.memory.front().time), ground, outline, x(drawing_.seconds),
          ground, bucket_style(bucket).name, format_bytes(bytes_in(std::ranges::max(row.memory, {}, bytes_in))));
    }
    put("<path class=\"ground\" d=\"M{} {:.1f}h{:.2f}\"/>\n", left_margin, ground, width_);
    put("<text class=\"side small\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", left_margin - 6, y + 10, row.peak);
    put("<text class=\"side small\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", left_margin - 6, ground - 2, lane.name);
  }

  const Drawing& drawing_;
  const double width_, scale_, mark_step_;
  std::vector<double> tops_ = {};  // of the lanes
  std::string text_ = {};
};

}  // namespace

std::string to_svg(const Picture& picture) {
  require_drawable("svg", picture.box_count());
  return SvgPainter(drawing_of(picture)).document();
}

}  // namespace weft
