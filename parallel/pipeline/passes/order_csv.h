// A user's own order, read from PyTorch's compute-only text form. A rank has one line with cells between commas in the
// order of time: `0F3`, `0I3`, `0W3`, `0B3`, `(0F3;3B1)OVERLAP_F_B`. The lines determine the rank of each stage: any
// placement will do, and ranks may run different numbers of stages.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct UserOrder {
  std::vector<std::vector<Action>> ranks;  // stage-level compute actions
  std::vector<int> stage_ranks;            // by stage
  int microbatches = 0;

  bool operator==(const UserOrder&) const = default;
};

// Cells may be empty (idle). Blanks around cells and around the two actions of a pair are dropped, and a line may end
// in CR LF. Empty lines at the end and lines that begin with # are no ranks. Cells with gathers, reductions or messages
// (PyTorch's form with communication) are refused: weft adds those itself, by its own rules.
//
// Throws Error (request) that lists at most twenty faults, each with line, column and cell. Faults are cells that
// cannot be read, a stage on two ranks, and missing stages and microbatches. So are actions that are missing, doubled
// or before an action they follow. Only if there is none of these, a circle of ranks that wait for each other.
UserOrder order_from_csv(std::string_view text);

// The order's stages on its ranks, without segments, units or sizes.
ProgramTables schedule_only_tables(const UserOrder& order);

// Counts that are set outside of the file.
struct AskedCounts {
  std::optional<int> ranks = {}, chunks = {}, microbatches = {};
};
// Throws Error (request) naming all counts that differ from the order's.
void require_same_counts(const UserOrder& order, const AskedCounts& asked);

}  // namespace weft
