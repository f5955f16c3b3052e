#include "tools/picture/picture_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

constexpr double lane_gap = 2, memory_height = 54, least_labelled = 12;

double height_of(Lane lane) {
  if (lane == Lane::compute) return 24;
  return lane == Lane::gather || lane == Lane::reduce ? 13 : 8;
}

std::string_view group_of(Lane lane) {
  return lane <= Lane::reduce ? lane_label(lane) : "transfers";
}

std::vector<PictureFigure> figures_of(const Picture& picture) {
  const auto time = [&](std::string name, double seconds) {
    return PictureFigure{std::move(name), seconds,
                         format_time(seconds, picture.unit_time) + (picture.unit_time ? " units" : "")};
  };
  const std::int64_t peak = picture.peak_bytes(), highest = picture.highest_bytes();
  const auto bytes = [](std::string name, std::int64_t count) {
    return PictureFigure{std::move(name), static_cast<double>(count), format_bytes(count)};
  };
  const StepWaits waits = picture.waits();
  std::vector<PictureFigure> figures = {time("step", picture.seconds),
                                        {"bubble", picture.bubble(), fmt::format("{:.1f} %", 100.0 * picture.bubble())},
                                        time("waits for gathers", waits.gathers),
                                        time("waits for reductions", waits.reductions)};
  if (waits.rows > 0.0) figures.push_back(time("waits for rows of experts", waits.rows));
  if (waits.host > 0.0) figures.push_back(time("waits for host copies", waits.host));
  figures.push_back(bytes("peak of the fullest rank", highest > 0 ? peak : 0));
  figures.push_back(bytes("where lanes run ahead", highest > peak ? highest : 0));
  return figures;
}

// Lines in front of the times of a box, and behind them.
std::string what_of(const PictureBox& box) {
  std::string text = box.action;
  if (box.actions > 1) text += fmt::format(", {} actions", box.actions);
  if (!box.subject.empty()) text += "\n" + box.subject;
  if (box.bytes > 0) text += fmt::format("\n{} ({} bytes)", format_bytes(box.bytes), box.bytes);
  return text;
}
std::string why_of(const PictureBox& box, bool unit_time) {
  std::string text;
  if (!box.waited_for.empty())
    text = fmt::format("waited {} for {}", format_time(box.waited, unit_time), box.waited_for);
  if (box.critical) text += text.empty() ? "on the critical path" : "\non the critical path";
  return text;
}

class Draughtsman {
 public:
  explicit Draughtsman(const Picture& picture) : picture_(picture) {
    drawing_.title = picture.title;
    drawing_.unit_time = picture.unit_time;
    drawing_.seconds = picture.seconds;
    drawing_.highest_bytes = picture.highest_bytes();
    drawing_.figures = figures_of(picture);
  }

  Drawing drawing() {
    kinds();
    idle_reasons();
    entry("critical path", {paint({"critical", {}})}, 18, 3);
    buckets();
    const std::size_t together = picture_.paired ? 2 : 1;
    for (std::size_t row = 0; row < picture_.ranks.size(); row += together) rows(row, together);
    for (const PictureHop& hop : picture_.hops) link(hop);
    return std::move(drawing_);
  }

 private:
  int paint(Paint paint) {
    drawing_.paints.push_back(std::move(paint));
    return static_cast<int>(drawing_.paints.size()) - 1;
  }
  void entry(std::string text, std::vector<int> paints, double width = 18, double height = 12) {
    drawing_.legend.push_back({std::move(paints), std::move(text), width, height});
  }

  void kinds() {
    const std::vector<int> chunks = picture_.chunks_of_kind();
    for (const BoxKind kind : all_values<BoxKind>) {
      const int count = chunks[static_cast<std::size_t>(kind)];
      const KindStyle style = style_of(kind);
      std::vector<int>& paints = of_kind_[static_cast<std::size_t>(kind)];
      for (int chunk = 0; chunk < count; ++chunk) {
        paints.push_back(paint({fmt::format("k{}c{}", static_cast<int>(kind), chunk),
                                shade_of(style.colour, chunk, count), style.texture}));
      }
      if (count == 0) continue;
      if (kind == BoxKind::reshard) {
        entry("reshard", {paints.front()}, 1.2);
      } else {
        entry(fmt::format("{} {}{}", style.letter, name_of(kind),
                          count > 1 ? fmt::format(" (chunks 0 to {})", count - 1) : ""),
              paints);
      }
    }
  }

  void idle_reasons() {
    for (const IdleReason reason : all_values<IdleReason>) {
      const bool found = std::ranges::any_of(picture_.ranks, [reason](const PictureRank& rank) {
        return std::ranges::find(rank.idle, reason, &PictureIdle::reason) != rank.idle.end();
      });
      if (!found) continue;
      const IdleStyle style = style_of(reason);
      int& number = of_idle_[static_cast<std::size_t>(reason)];
      number = paint({fmt::format("idle{}", static_cast<int>(reason)), style.colour, style.texture, style.strength});
      entry(std::string(name_of(reason)), {number});
    }
  }

  void buckets() {
    drawing_.first_bucket = static_cast<int>(drawing_.paints.size());
    for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
      const BucketStyle style = bucket_style(bucket);
      const int number = paint({fmt::format("m{}", bucket), style.colour, style.texture});
      const bool found = std::ranges::any_of(picture_.ranks, [&](const PictureRank& rank) {
        return std::ranges::any_of(rank.memory, [&](const MemorySample& sample) { return style.bytes(sample) > 0; });
      });
      if (found) entry(std::string(style.name), {number});
    }
  }

  // Rows that share their lanes: each lane of the second one stands below that of the first.
  void rows(std::size_t first, std::size_t count) {
    for (std::size_t row = first; row < first + count; ++row) {
      const PictureRank& rank = picture_.ranks[row];
      drawing_.rows.push_back({rank.rank,
                               fmt::format("rank {}{}", rank.rank, rank.name.empty() ? "" : ", " + rank.name + ","),
                               format_bytes(rank.peak_bytes), rank.memory});
      lanes_.emplace_back(all_lanes.size());
    }
    for (const Lane lane : picture_.lanes) {
      for (std::size_t row = first; row < first + count; ++row) {
        const PictureRank& rank = picture_.ranks[row];
        const bool last = row + 1 == first + count;
        std::string name(lane_label(lane));
        if (lane == Lane::compute) name = fmt::format("rank {}{}", rank.rank, rank.name.empty() ? "" : " " + rank.name);
        if (lane != Lane::compute && row > first) name = rank.name;
        lanes_[row][static_cast<std::size_t>(lane)] = drawing_.lanes.size();
        drawing_.lanes.push_back({name, group_of(lane), row, height_of(lane), last ? lane_gap : lane_gap - 1,
                                  boxes(rank, lane), labels(rank, lane)});
      }
    }
    for (std::size_t row = first; row < first + count; ++row) {
      if (picture_.ranks[row].memory.empty()) continue;
      drawing_.lanes.push_back({"memory", "memory", row, memory_height, lane_gap});
    }
  }

  int paint_of(const PictureBox& box) const {
    return of_kind_[static_cast<std::size_t>(box.kind)][static_cast<std::size_t>(box.chunk)];
  }

  std::vector<DrawnBox> boxes(const PictureRank& rank, Lane lane) const {
    std::vector<DrawnBox> boxes;
    for (const PictureBox& box : rank.boxes) {
      if (box.lane != lane) continue;
      boxes.push_back({box.start, box.end, paint_of(box), what_of(box), why_of(box, picture_.unit_time),
                       box.kind == BoxKind::reshard, false, box.critical});
    }
    if (lane != Lane::compute) return boxes;
    for (const PictureIdle& idle : rank.idle) {
      boxes.push_back({idle.start, idle.end, of_idle_[static_cast<std::size_t>(idle.reason)],
                       std::string(name_of(idle.reason)), idle.waited_for, false, true});
    }
    std::ranges::stable_sort(boxes, {}, &DrawnBox::start);
    return boxes;
  }

  // Consecutive segments of a stage and microbatch carry the microbatch's number once.
  std::vector<DrawnLabel> labels(const PictureRank& rank, Lane lane) const {
    std::vector<DrawnLabel> labels;
    if (height_of(lane) < least_labelled) return labels;
    const PictureBox* before = nullptr;
    for (const PictureBox& box : rank.boxes) {
      if (box.lane != lane || box.kind == BoxKind::reshard) continue;
      if (before != nullptr && lane == Lane::compute && box.continues(*before)) {
        labels.back().end = box.end;
      } else {
        const bool of_subject = lane != Lane::compute && !box.subject.empty();
        labels.push_back({box.start, box.end, paint_of(box), of_subject ? box.subject : box.label()});
      }
      before = &box;
    }
    std::erase_if(labels, [](const DrawnLabel& label) { return label.text.empty(); });
    return labels;
  }

  void link(const PictureHop& hop) {
    const PictureBox& from = picture_.ranks[hop.from_rank].boxes[hop.from_box];
    const PictureBox& to = picture_.ranks[hop.to_rank].boxes[hop.to_box];
    drawing_.links.push_back({lanes_[hop.from_rank][static_cast<std::size_t>(from.lane)],
                              lanes_[hop.to_rank][static_cast<std::size_t>(to.lane)], from.end, to.start});
  }

  const Picture& picture_;
  std::array<std::vector<int>, all_values<BoxKind>.size()> of_kind_;  // paints by kind and chunk
  std::array<int, all_values<IdleReason>.size()> of_idle_ = {};
  std::vector<std::vector<std::size_t>> lanes_;  // index of `Drawing::lanes` by row and lane
  Drawing drawing_;
};

}  // namespace

Drawing drawing_of(const Picture& picture) {
  return Draughtsman(picture).drawing();
}

}  // namespace weft
