#include "tools/picture/picture_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

// In a run's trace, thread 0 is the host.
int thread_of(Lane lane) {
  return 1 + static_cast<int>(lane);
}

ChromeEvent event_of(int rank, const PictureBox& box) {
  ChromeEvent event{rank, thread_of(box.lane), box.action, std::string(name_of(box.kind)), box.start, box.end, {}};
  if (box.stage) event.arguments.emplace_back("stage", std::int64_t{*box.stage});
  if (box.microbatch) event.arguments.emplace_back("microbatch", std::int64_t{*box.microbatch});
  if (box.bytes > 0) event.arguments.emplace_back("bytes", box.bytes);
  if (box.actions > 1) event.arguments.emplace_back("actions", std::int64_t{box.actions});
  if (!box.waited_for.empty()) {
    event.arguments.emplace_back("waited", box.waited);
    event.arguments.emplace_back("waited_for", box.waited_for);
  }
  if (box.critical) event.arguments.emplace_back("critical_path", true);
  return event;
}

// A computation of a stage is one cell, even with gathers between its segments.
std::vector<PictureBox> cells_of(const PictureRank& rank) {
  std::vector<PictureBox> cells;
  for (const PictureBox& box : rank.boxes) {
    if (box.lane != Lane::compute || box.kind > BoxKind::recompute) continue;
    if (!cells.empty() && box.continues(cells.back())) {
      cells.back().end = box.end;
    } else {
      cells.push_back(box);
    }
  }
  return cells;
}

void draw(std::string& line, const PictureBox& cell, double columns_a_second) {
  const auto column = [&](double time) { return static_cast<std::size_t>(std::lround(time * columns_a_second)); };
  const std::size_t begin = column(cell.start), end = std::min(column(cell.end), line.size());
  if (end <= begin) return;
  const std::size_t width = end - begin;
  const bool forward = cell.kind == BoxKind::forward, weight = cell.kind == BoxKind::backward_weight,
             again = cell.kind == BoxKind::recompute;
  if (width == 1) {
    line[begin] = '|';
    return;
  }
  line[begin] = forward ? '(' : weight ? '<' : again ? '{' : '[';
  line[end - 1] = forward ? ')' : weight ? '>' : again ? '}' : ']';
  const std::string label = cell.label();
  if (label.size() + 2 > width) return;
  line.replace(begin + (width - label.size()) / 2, label.size(), label);
}

}  // namespace

bool is_picture_format(std::string_view format) {
  return format == "svg" || format == "html" || format == "trace";
}

void require_drawable(std::string_view format, std::size_t boxes) {
  if (format == "svg" && boxes > svg_box_limit) {
    fail_request(
        "the picture has {} boxes, more than the {} that an SVG may hold: merge them with --stages-only or "
        "--compute-only, show one rank with --rank, draw fewer microbatches, or take --format html",
        boxes, svg_box_limit);
  }
  if (format == "html" && boxes > html_box_limit) {
    fail_request(
        "the page has {} boxes, more than the {} that it may hold: merge them with --stages-only or --compute-only, "
        "show one rank with --rank, or draw fewer microbatches or variants",
        boxes, html_box_limit);
  }
}

std::string render_pictures(const std::string& command, std::span<const Picture> pictures, std::string_view format) {
  if (format == "html") return to_html(pictures, pictures.size() == 1 ? pictures.front().title : "Variants of a step");
  if (pictures.size() != 1) {
    fail_request("{}: error: --format {} holds one picture; several variants go with --format html", command, format);
  }
  return format == "svg" ? to_svg(pictures.front()) : to_json(chrome_trace_of(pictures.front()));
}

ChromeTrace chrome_trace_of(const Picture& picture) {
  ChromeTrace trace;
  for (const PictureRank& rank : picture.ranks) {
    ChromeProcess process{rank.rank, fmt::format("rank {}", rank.rank), {}};
    for (Lane lane : picture.lanes) process.threads.push_back({thread_of(lane), std::string(name_of(lane))});
    trace.processes.push_back(std::move(process));
    for (const PictureBox& box : rank.boxes) trace.events.push_back(event_of(rank.rank, box));
    for (const MemorySample& sample : rank.memory) {
      ChromeCounter counter{rank.rank, "memory", sample.time, {}};
      for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
        const BucketStyle style = bucket_style(bucket);
        counter.values.emplace_back(std::string(style.name), style.bytes(sample));
      }
      trace.counters.push_back(std::move(counter));
    }
  }
  return trace;
}

std::string time_grid(const Program& program, const SimulatedStep& step, const PictureOptions& options) {
  constexpr std::size_t columns = 120;
  std::size_t computations = 0;
  for (const std::vector<Action>& actions : program.ranks) {
    computations += at_detail(actions, Detail::compute_only).size();
  }
  if (computations > program.ranks.size() * columns) return "";
  const Picture picture = picture_of(program, step, options);
  if (picture.seconds <= 0.0) return "";
  const double scale = columns / picture.seconds;
  std::vector<std::vector<PictureBox>> ranks;
  std::size_t cells = 0, readable = 0;
  for (const PictureRank& rank : picture.ranks) {
    ranks.push_back(cells_of(rank));
    for (const PictureBox& cell : ranks.back()) {
      ++cells;
      readable += (cell.end - cell.start) * scale >= 2.5;
    }
  }
  if (cells == 0 || 4 * readable < 3 * cells) return "";
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::string line(columns, ' ');
    for (const PictureBox& cell : ranks[r]) draw(line, cell, scale);
    text += fmt::format("rank {:<3}|{}|\n", picture.ranks[r].rank, line);
  }
  return text;
}

}  // namespace weft
