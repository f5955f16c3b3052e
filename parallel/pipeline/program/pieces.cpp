#include "parallel/pipeline/program/pieces.h"

#include <fmt/format.h>

namespace weft {
namespace {

template <typename Entry>
const Entry* find_entry(const std::vector<Entry>& entries, std::optional<int> index) {
  if (!index || *index < 0 || *index >= static_cast<int>(entries.size())) return nullptr;
  return &entries[*index];
}

}  // namespace

PieceTable::PieceTable(const ProgramTables& tables) : positions_(tables.segments.size()) {
  for (std::size_t stage = 0; stage < tables.stages.size(); ++stage) {
    begins_.push_back(pieces_.size());
    const auto& segments = tables.stages[stage].segments;
    if (segments.empty()) pieces_.push_back({static_cast<int>(stage)});
    for (int segment : segments) {
      positions_.at(segment) = pieces_.size();
      pieces_.push_back({static_cast<int>(stage), segment});
    }
  }
  begins_.push_back(pieces_.size());
}

bool PieceTable::has(int stage, int segment) const {
  const auto piece = positions_[segment];
  return piece && pieces_[*piece].stage == stage;
}

PieceTable::Span PieceTable::of(const Action& action) const {
  if (!action.segment) return {begin(*action.stage), end(*action.stage)};
  const std::size_t piece = *positions_[*action.segment];
  return {piece, piece + 1};
}

std::optional<std::string> malformed(const Program& program, const PieceTable& pieces, const Action& action) {
  if (action.op == Op::gradient_norm || action.op == Op::optimizer_step) return std::nullopt;
  if (!action.stage) return "it names no stage";
  const ProgramStage* stage = find_entry(program.stages, action.stage);
  if (!stage) return fmt::format("stage {} does not exist; there are {}", *action.stage, program.stages.size());
  if (is_compute(action.op) || is_message(action.op) || is_row_exchange(action.op) || takes_kept(action.op)) {
    if (!action.microbatch) return "it names no microbatch";
    if (*action.microbatch < 0 || *action.microbatch >= program.microbatches) {
      return fmt::format("microbatch {} does not exist; there are {}", *action.microbatch, program.microbatches);
    }
  }
  if (action.segment) {
    const ProgramSegment* segment = find_entry(program.segments, action.segment);
    if (!segment) return fmt::format("segment {} does not exist", *action.segment);
    if (!pieces.has(*action.stage, *action.segment)) {
      return fmt::format("segment {} is not part of stage {}", segment->name, *action.stage);
    }
  }
  if ((is_row_exchange(action.op) || takes_kept(action.op)) && !action.segment) return "it names no segment";
  if (action.unit) {
    const ProgramUnit* unit = find_entry(program.units, action.unit);
    if (!unit) return fmt::format("unit {} does not exist", *action.unit);
    if (unit->stage != *action.stage) {
      return fmt::format("unit {} belongs to stage {}, not {}", unit->name, unit->stage, *action.stage);
    }
  }
  return std::nullopt;
}

}  // namespace weft
