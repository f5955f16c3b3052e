// Counts and bytes of a step's work on shard units, read off the program and summed over all ranks. They are compared
// with a run's counters, and with the figures of the same run under another setting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/resolve/resolved_run.h"

namespace weft {

// A unit that alone holds the parameters of a stage's several blocks: all their dense parts, or all their experts, as
// seen from rank 0.
struct WholeStageUnit {
  int unit = 0;  // index into Program::units
  std::string name;
  Family family = Family::root;
  int blocks = 0;
  std::int64_t bytes = 0;  // of one gather
};

struct ProgramFigures {
  // Summed over ranks, as counters.h counts. `exchange`: gathers and reductions of units and of routing helpers.
  CommunicationCounters exchange;
  std::int64_t gathers = 0, gather_bytes = 0, gathered_elements = 0;  // over whole shard groups and over islands
  // Gathers for which is_late_gather() holds.
  std::int64_t late_gathers = 0;
  std::vector<WholeStageUnit> whole_stage_units;
  std::int64_t gathered_units = 0;  // gathered at least once in a step, over all ranks
  std::int64_t peak_bytes = 0;      // predicted, of the fullest rank
  int shard_ranks = 1;              // of the largest group that gathers
};

// One rank stands for all of its class (rank_classes). Throws Error if the configuration cannot be compiled.
ProgramFigures program_figures(const ResolvedRun& run);

// Whether computation precedes the gather at `at`, and the next computation after it already reads the gathered unit.
bool is_late_gather(const Program& program, const std::vector<Action>& actions, std::size_t at);

// Whether a compute action reads the gathered parameters of a unit.
bool reads_unit(const Program& program, const Action& action, int unit);

}  // namespace weft
