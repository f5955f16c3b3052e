// Pieces are what the checker and the memory walk count by: the segments of a stage, or the whole stage if it names
// none. An action without a segment stands for all pieces of its stage, so stage-level and lowered lists read alike.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct ScheduledPiece {
  int stage = 0;
  std::optional<int> segment = {};
};

class PieceTable {
 public:
  explicit PieceTable(const ProgramTables& tables);

  std::size_t size() const { return pieces_.size(); }
  const ScheduledPiece& operator[](std::size_t piece) const { return pieces_[piece]; }
  // The pieces of a stage in forward order: begin .. end - 1.
  std::size_t begin(int stage) const { return begins_[stage]; }
  std::size_t end(int stage) const { return begins_[stage + 1]; }

  struct Span {
    std::size_t begin = 0, end = 0;
  };
  // Whether a stage lists the segment.
  bool has(int stage, int segment) const;
  // The pieces that a well-formed action computes.
  Span of(const Action& action) const;

 private:
  std::vector<ScheduledPiece> pieces_;                 // by stage, then in forward order
  std::vector<std::size_t> begins_;                    // by stage, and the end
  std::vector<std::optional<std::size_t>> positions_;  // by segment
};

// Why an action is meaningless in these tables, whatever came before it: a stage, microbatch, segment or unit is
// missing or out of range. Absent if the action is well formed.
std::optional<std::string> malformed(const Program& program, const PieceTable& pieces, const Action& action);

}  // namespace weft
