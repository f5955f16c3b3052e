// A user's own order, read from PyTorch's compute-only text form: one line a rank, cells between commas in the order of
// time, `0F3`, `0I3`, `0W3`, `0B3`, `(0F3;3B1)OVERLAP_F_B`. Which stage stands on which rank follows from the lines:
// any placement will do, and ranks may run different numbers of stages.
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

// Cells may be empty (idle), blanks around them and around the two of a pair are dropped, a line may end in CR LF;
// empty lines at the end and lines that begin with # are no ranks. Cells with gathers, reductions or messages
// (PyTorch's form with communication) are refused: weft adds those itself, by its own rules.
//
// Throws Error (request) that lists what is wrong, each with line, column and cell, twenty at most: cells it cannot
// read; a stage on two ranks; stages and microbatches that are left out; actions that are missing, doubled or stand
// before what they follow; and, where nothing of that is wrong, a circle of ranks that wait for each other.
UserOrder order_from_csv(std::string_view text);

// The order's stages on its ranks, nothing else known.
ProgramTables bare_tables(const UserOrder& order);

// Counts that something beside the file has set.
struct AskedCounts {
  std::optional<int> ranks = {}, chunks = {}, microbatches = {};
};
// Throws Error (request) naming all counts that are not the order's.
void require_same_counts(const UserOrder& order, const AskedCounts& asked);

}  // namespace weft
