#include "tools/picture/picture_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel/pipeline/text/text.h"

namespace weft {
namespace {

struct Cell {
  BoxKind kind = BoxKind::forward;
  std::optional<int> stage, microbatch;
  double start = 0.0, end = 0.0;
};

// A computation of a stage is one cell, even with gathers between its segments.
std::vector<Cell> cells_of(const PictureRank& rank) {
  std::vector<Cell> cells;
  for (const PictureBox& box : rank.boxes) {
    if (box.lane != Lane::compute || box.kind > BoxKind::recompute) continue;
    const bool same = !cells.empty() && cells.back().kind == box.kind && cells.back().stage == box.stage &&
                      cells.back().microbatch == box.microbatch;
    if (same) {
      cells.back().end = box.end;
    } else {
      cells.push_back({box.kind, box.stage, box.microbatch, box.start, box.end});
    }
  }
  return cells;
}

void draw(std::string& line, const Cell& cell, double columns_a_second) {
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
  const std::string label = cell.microbatch ? std::to_string(*cell.microbatch) : "";
  if (label.size() + 2 > width) return;
  std::copy(label.begin(), label.end(), line.begin() + static_cast<std::ptrdiff_t>(begin + (width - label.size()) / 2));
}

}  // namespace

std::string time_grid(const Picture& picture, int columns) {
  if (picture.seconds <= 0.0) return "";
  const double scale = columns / picture.seconds;
  std::vector<std::vector<Cell>> ranks;
  std::size_t cells = 0, readable = 0;
  for (const PictureRank& rank : picture.ranks) {
    ranks.push_back(cells_of(rank));
    for (const Cell& cell : ranks.back()) {
      ++cells;
      readable += (cell.end - cell.start) * scale >= 2.5;
    }
  }
  if (cells == 0 || 4 * readable < 3 * cells) return "";
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::string line(static_cast<std::size_t>(columns), ' ');
    for (const Cell& cell : ranks[r]) draw(line, cell, scale);
    text += fmt::format("rank {:<3}|{}|\n", picture.ranks[r].rank, line);
  }
  return text;
}

std::string time_grid(const Program& program, const SimulatedStep& step, const PictureOptions& options, int columns) {
  std::size_t computations = 0;
  for (const std::vector<Action>& actions : program.ranks) {
    computations += at_detail(actions, Detail::compute_only).size();
  }
  if (computations > program.ranks.size() * static_cast<std::size_t>(columns)) return "";
  return time_grid(picture_of(program, step, options), columns);
}

}  // namespace weft
