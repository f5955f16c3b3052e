// A step with everything that a picture can show: lanes of all kinds, waits of each reason, memory in every bucket. It
// has names that no markup may take for its own.
#pragma once

#include <array>

#include "tests/parallel/program_grid.h"
#include "tests/parallel/random_ledger.h"
#include "tools/picture/picture.h"

namespace weft {

inline constexpr std::string_view hostile = R"(<b>&"it's"</script>)";

inline Program hostile_program(std::string_view schedule = "zbv", int chunks = 2, int microbatches = 4) {
  const Schedule& row = find_schedule(schedule);
  ProgramTables tables =
      stage_tables(2, 2, {.residency = Residency::while_on_stage, .lookahead = 1}, chunks, row.placement);
  for (ProgramSegment& segment : tables.segments) {
    segment.name += hostile;
    segment.activation_bytes = 3000;
  }
  for (ProgramUnit& unit : tables.units) {
    unit.name += hostile;
    unit.unsharded_bytes = 5000;
    unit.gradient_bytes = 7000;
    unit.reduce_part_bytes = 1000;
  }
  return compile(tables, row, {.ranks = 2, .chunks = chunks, .microbatches = microbatches});
}

// Milliseconds in which nothing is round.
inline ProgramCosts hostile_costs(const Program& program) {
  ProgramCosts costs = even_costs(program, {1.03e-3, 1.41e-3, 0.77e-3});
  for (UnitCost& cost : costs.units) cost = {0.31e-3, 0.31e-3, 0.37e-3, 0.37e-3};
  for (double& cost : costs.transfers) cost = 0.13e-3;
  costs.gradient_norm = 0.11e-3;
  costs.optimizer_step = 0.23e-3;
  return costs;
}
inline SimulatedStep hostile_step(const Program& program) {
  Dice dice(1);
  std::vector<LedgerWalk> ledgers;
  for (const auto& actions : program.ranks) ledgers.push_back(random_ledger(dice, actions.size()));
  return simulate_step(program, hostile_costs(program), LaneChannels::own(), ledgers);
}

inline Picture hostile_picture(std::string_view schedule = "zbv", int chunks = 2, int microbatches = 4) {
  const Program program = hostile_program(schedule, chunks, microbatches);
  return picture_of(program, hostile_step(program), {.title = fmt::format("{} {}", schedule, hostile)});
}

// The bytes of a sample from the bottom of its curve up, as a picture tells them apart.
inline std::array<std::int64_t, 6> layers_of(const MemorySample& sample) {
  const BucketBytes& bytes = sample.bytes;
  return {bytes[Bucket::sharded_parameters] + bytes[Bucket::replicated_parameters] + bytes[Bucket::sharded_gradients] +
              bytes[Bucket::optimizer_state],
          bytes[Bucket::unsharded_parameters],
          bytes[Bucket::unsharded_gradients],
          bytes[Bucket::communication],
          bytes[Bucket::activations] + bytes[Bucket::moe_routing],
          bytes[Bucket::workspace]};
}

}  // namespace weft
