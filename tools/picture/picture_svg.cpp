#include "tools/picture/picture_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

// Pixels.
constexpr double left_margin = 132, right_margin = 28, least_width = 1200, most_width = 12'000, readable_box = 21;
constexpr double header = 50, axis_height = 24, rank_gap = 10, lane_gap = 2, memory_height = 54;
constexpr double character = 6.4;  // widest character of a label

double height_of(Lane lane) {
  if (lane == Lane::compute) return 24;
  return lane == Lane::gather || lane == Lane::reduce ? 13 : 8;
}

// A width at which half of the computations have room for their microbatch.
double width_of(const Picture& picture) {
  std::vector<double> lengths;
  for (const PictureRank& rank : picture.ranks) {
    for (const PictureBox& box : rank.boxes) {
      if (box.lane == Lane::compute) lengths.push_back(box.end - box.start);
    }
  }
  if (lengths.empty()) return least_width;
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return std::clamp(picture.seconds / *middle * readable_box, least_width, most_width);
}

class SvgPainter {
 public:
  explicit SvgPainter(const Picture& picture)
      : picture_(picture),
        chunks_(picture.chunks_of_kind()),
        width_(width_of(picture)),
        scale_(picture.seconds > 0.0 ? width_ / picture.seconds : 0.0),
        highest_(picture.highest_bytes()) {}

  std::string document() {
    const double all = left_margin + width_ + right_margin;
    double y = header;
    put(legend(picture_, left_margin, y, all - right_margin, y));
    const double top = y + axis_height;
    place_ranks(top);
    axis(top, bottom_);
    for (std::size_t row = 0; row < picture_.ranks.size(); ++row) rank(row);
    for (const PictureHop& hop : picture_.hops) link(hop);
    axis_marks(bottom_ + 14);
    const std::string opening = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\" role=\"img\">\n"
        "<title>{2}</title>\n{3}<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{4}",
        all, bottom_ + axis_height, escaped_markup(picture_.title), style_and_textures(picture_), heading());
    return opening + text_ + "</svg>\n";
  }

 private:
  double x(double seconds) const { return left_margin + scale_ * seconds; }
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void put(const std::string& text) { text_ += text; }

  std::string heading() const {
    std::string figures = fmt::format("step {}{}, bubble {:.1f} %", format_time(picture_.seconds, picture_.unit_time),
                                      picture_.unit_time ? " units" : "", 100.0 * picture_.bubble());
    if (picture_.exposed_gathers() > 0.0) {
      figures += fmt::format(", waits for gathers {}", format_time(picture_.exposed_gathers(), picture_.unit_time));
    }
    if (picture_.exposed_reductions() > 0.0) {
      figures +=
          fmt::format(", waits for reductions {}", format_time(picture_.exposed_reductions(), picture_.unit_time));
    }
    if (highest_ > 0) figures += fmt::format(", peak {}", format_bytes(picture_.peak_bytes()));
    if (highest_ > picture_.peak_bytes()) {
      figures += fmt::format(", {} where lanes run ahead", format_bytes(highest_));
    }
    return fmt::format(
        "<text x=\"{}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{}</text>\n<text x=\"{}\" y=\"38\">{}</text>\n",
        left_margin, escaped_markup(picture_.title), left_margin, figures);
  }

  void place_ranks(double top) {
    double y = top;
    for (const PictureRank& rank : picture_.ranks) {
      std::vector<double> lanes(all_lanes.size(), 0.0);
      for (Lane lane : picture_.lanes) {
        lanes[static_cast<std::size_t>(lane)] = y;
        y += height_of(lane) + lane_gap;
      }
      lanes_.push_back(std::move(lanes));
      memory_.push_back(y);
      if (!rank.memory.empty()) y += memory_height + lane_gap;
      const bool rows_only = picture_.lanes.size() < 2 && rank.memory.empty();
      y += rows_only ? lane_gap : rank_gap;
    }
    bottom_ = y;
  }

  void axis(double top, double bottom) {
    axis_marks(top - 8);
    const double step = mark_distance(picture_.seconds, static_cast<int>(width_ / 90));
    for (int i = 0; i * step <= picture_.seconds * (1 + 1e-9); ++i) {
      put("<line class=\"grid\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", x(i * step), top - 4,
          bottom + 2);
    }
  }

  void axis_marks(double baseline) {
    const double step = mark_distance(picture_.seconds, static_cast<int>(width_ / 90));
    for (int i = 0; i * step <= picture_.seconds * (1 + 1e-9); ++i) {
      put("<text class=\"mark\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n", x(i * step), baseline,
          format_time(i * step, picture_.unit_time));
    }
    put("<text class=\"side\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", left_margin - 22, baseline,
        picture_.unit_time ? "time, units" : "time");
  }

  void rank(std::size_t row) {
    const PictureRank& rank = picture_.ranks[row];
    put("<g id=\"rank{}\">\n", rank.rank);
    for (Lane lane : picture_.lanes) {
      const double y = lanes_[row][static_cast<std::size_t>(lane)], height = height_of(lane);
      put("<rect class=\"lane\" x=\"{}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>\n", left_margin, y, width_,
          height);
      if (lane == Lane::compute) {
        put("<text class=\"side rank\" x=\"{}\" y=\"{:.1f}\">rank {}</text>\n", left_margin - 6, y + 16, rank.rank);
      } else {
        put("<text class=\"side small\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", left_margin - 6, y + height / 2 + 3,
            lane_label(lane));
      }
    }
    for (const PictureIdle& idle : rank.idle) stand_still(row, idle);
    for (const PictureBox& box : rank.boxes) paint(row, box);
    computation_labels(row);
    for (const PictureBox& box : rank.boxes) {
      if (box.critical) outline(row, box);
    }
    if (!rank.memory.empty()) memory(row);
    put("</g>\n");
  }

  void stand_still(std::size_t row, const PictureIdle& idle) {
    put("<rect class=\"idle{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"><title>{}</title></rect>\n",
        static_cast<int>(idle.reason), x(idle.start), lanes_[row][0], scale_ * (idle.end - idle.start),
        height_of(Lane::compute), tooltip(picture_, idle));
  }

  void paint(std::size_t row, const PictureBox& box) {
    const double y = lanes_[row][static_cast<std::size_t>(box.lane)], height = height_of(box.lane);
    const double width = scale_ * (box.end - box.start);
    if (box.kind == BoxKind::reshard) {
      put("<path class=\"drop\" d=\"M{:.2f} {:.1f}v{}\"><title>{}</title></path>\n", x(box.start), y - 1, height + 2,
          tooltip(picture_, box));
      return;
    }
    put("<rect class=\"box k{}c{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
        "height=\"{}\"><title>{}</title></rect>\n",
        static_cast<int>(box.kind), box.chunk, x(box.start), y, width, height, tooltip(picture_, box));
    if (box.lane == Lane::compute) return;
    label(row, box, box.end, box.subject.empty() ? box.label() : box.subject);
  }

  // A label over one box, or over several boxes from `box` to `end`.
  void label(std::size_t row, const PictureBox& box, double end, const std::string& text) {
    const double y = lanes_[row][static_cast<std::size_t>(box.lane)], height = height_of(box.lane);
    const double width = scale_ * (end - box.start), font = box.lane == Lane::compute ? 11 : 8;
    if (text.empty() || height < 12 || static_cast<double>(text.size()) * character * font / 11 + 2 > width) return;
    const Colour under = shade_of(style_of(box.kind).colour, box.chunk, chunks_[static_cast<std::size_t>(box.kind)]);
    put("<text class=\"in\" x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\" stroke=\"{}\">{}</text>\n",
        x(box.start) + width / 2, y + height / 2 + font * 0.36, font, text_colour_on(under).hex(), under.hex(),
        escaped_markup(text));
  }

  // Consecutive segments of a stage and microbatch carry the microbatch's number once.
  void computation_labels(std::size_t row) {
    const PictureBox* first = nullptr;
    double end = 0.0;
    const auto finish = [&] {
      if (first != nullptr) label(row, *first, end, first->label());
    };
    for (const PictureBox& box : picture_.ranks[row].boxes) {
      if (box.lane != Lane::compute || box.kind == BoxKind::reshard) continue;
      const bool goes_on = first != nullptr && box.kind == first->kind && box.stage == first->stage &&
                           box.microbatch == first->microbatch;
      if (!goes_on) {
        finish();
        first = &box;
      }
      end = box.end;
    }
    finish();
  }

  void outline(std::size_t row, const PictureBox& box) {
    if (box.kind == BoxKind::reshard) return;
    put("<rect class=\"critical\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"3\"/>\n", x(box.start),
        lanes_[row][static_cast<std::size_t>(box.lane)] + height_of(box.lane) - 3, scale_ * (box.end - box.start));
  }

  // A line from the end of one box to the start of the next, at the lower edges that mark the path.
  void link(const PictureHop& hop) {
    const PictureBox& from = picture_.ranks[hop.from_rank].boxes[hop.from_box];
    const PictureBox& to = picture_.ranks[hop.to_rank].boxes[hop.to_box];
    const auto edge = [&](std::size_t row, const PictureBox& box) {
      return lanes_[row][static_cast<std::size_t>(box.lane)] + height_of(box.lane) - 1.5;
    };
    put("<path class=\"link\" d=\"M{:.2f} {:.1f}L{:.2f} {:.1f}\"/>\n", x(from.end), edge(hop.from_rank, from),
        x(to.start), edge(hop.to_rank, to));
  }

  // Each path is the sum of the buckets up to its own. The highest is painted first, the others over it.
  void memory(std::size_t row) {
    const PictureRank& rank = picture_.ranks[row];
    const double ground = memory_[row] + memory_height, per_byte = (memory_height - 4) / static_cast<double>(highest_);
    for (int bucket = curve_bucket_count - 1; bucket >= 0; --bucket) {
      const auto bytes_in = bucket_style(bucket).bytes;
      std::string outline;
      for (const MemorySample& sample : rank.memory) {
        std::int64_t bytes = 0;
        for (int below = 0; below <= bucket; ++below) bytes += sample.*bucket_style(below).bytes;
        const auto height = per_byte * static_cast<double>(bytes);
        fmt::format_to(std::back_inserter(outline), "{}{:.2f}V{:.3f}", outline.empty() ? "" : "H", x(sample.time),
                       ground - height);
      }
      put("<path class=\"m{}\" d=\"M{:.2f} {:.2f}H{}H{:.2f}V{:.2f}Z\"><title>{}: {}</title></path>\n", bucket,
          x(rank.memory.front().time), ground, outline, x(picture_.seconds), ground, bucket_style(bucket).name,
          format_bytes(std::ranges::max(rank.memory, {}, bytes_in).*bytes_in));
    }
    put("<path class=\"ground\" d=\"M{} {:.1f}h{:.2f}\"/>\n", left_margin, ground, width_);
    put("<text class=\"side small\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", left_margin - 6, memory_[row] + 10,
        format_bytes(rank.peak_bytes));
    put("<text class=\"side small\" x=\"{}\" y=\"{:.1f}\">memory</text>\n", left_margin - 6, ground - 2);
  }

  const Picture& picture_;
  const std::vector<int> chunks_;
  const double width_, scale_;
  const std::int64_t highest_;
  std::vector<std::vector<double>> lanes_;  // upper edge by row and lane
  std::vector<double> memory_;              // upper edge by row
  double bottom_ = 0.0;
  std::string text_;
};

}  // namespace

std::string to_svg(const Picture& picture) {
  require_drawable("svg", picture.box_count());
  return SvgPainter(picture).document();
}

}  // namespace weft
