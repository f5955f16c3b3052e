#include "parallel/pipeline/program.h"

#include "parallel/runtime/error.h"

namespace weft {

std::string_view name_of(Residency residency) {
  switch (residency) {
    case Residency::each_use:
      return "each_use";
    case Residency::keep_after_forward:
      return "keep_after_forward";
    case Residency::keep_after_backward:
      return "keep_after_backward";
    case Residency::visit:
      return "visit";
    case Residency::window:
      return "window";
    case Residency::step:
      return "step";
    case Residency::island:
      return "island";
  }
  return "?";
}

ProgramTables bare_tables(int ranks, int stages, Placement placement) {
  if (ranks < 1 || stages < ranks) {
    fail_request("{} stages on {} pipeline ranks: there is at least one rank, and every rank runs a stage", stages,
                 ranks);
  }
  ProgramTables tables;
  for (int stage = 0; stage < stages; ++stage) {
    tables.stages.push_back({.rank = rank_of(placement, ranks, stage)});
  }
  return tables;
}

}  // namespace weft
