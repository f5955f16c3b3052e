// What a configuration's program does to shard units in a step, added up over all ranks before anything runs: counts
// and bytes that a run's counters are held against, and what another setting would have made of the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trainer/resolve/resolved_run.h"

namespace weft {

// The only unit that has parameters of a stage's blocks, which are several: all of their dense parts, or all of their
// experts, as seen from rank 0.
struct WholeStageUnit {
  int unit = 0;  // of Program::units
  std::string name;
  Family family = Family::root;
  int stage = 0, blocks = 0;
  std::int64_t bytes = 0;  // of a gather

  bool operator==(const WholeStageUnit&) const = default;
};

struct ProgramFigures {
  // Summed over the ranks, as counters.h counts. `exchange`: gathers and reductions of units and of routing helpers.
  CommunicationCounters exchange;
  std::int64_t gathers = 0, gather_bytes = 0, gathered_elements = 0;  // over whole shard groups and over islands
  // Those for which is_late_gather() holds.
  std::int64_t late_gathers = 0;
  std::vector<WholeStageUnit> whole_stage_units;
  std::int64_t gathered_units = 0;  // over all ranks
  std::int64_t peak_bytes = 0;      // predicted, of the fullest rank
  int shard_ranks = 1;              // of the largest group that gathers
};

// Ranks that differ in their data alone have the same sizes, so one of them stands for all. Throws Error when the
// configuration cannot be compiled.
ProgramFigures program_figures(const ResolvedRun& run);

// Whether the gather at `at` has something computed before it and nothing between it and its first use.
bool is_late_gather(const Program& program, const std::vector<Action>& actions, std::size_t at);

// Whether a compute action reads the gathered parameters of a unit.
bool reads_unit(const Program& program, const Action& action, int unit);

// Those of the configuration with something changed, resolved anew; nothing where that is refused.
std::optional<ProgramFigures> figures_with(Config config, const std::function<void(Config&)>& change);

// The policy of every family, and the default one.
void change_policies(Config& config, const std::function<void(ShardPolicy&)>& change);

// Where a value of [shard] stands that `holds` for: "shard.wrap" where it is the default's, otherwise those of
// families.
std::string policy_setting(const Config& config, const std::string& key,
                           const std::function<bool(const ShardPolicy&)>& holds);

}  // namespace weft
