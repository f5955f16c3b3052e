#include "tools/program/unit_rows.h"

#include <fmt/format.h>

#include "parallel/shard/replicated.h"
#include "trainer/config/update_groups.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"

namespace weft {
namespace {

std::string wrap_of(const Config& config, const UnitPlan& plan) {
  if (plan.replicated()) return {};
  // Other families are wrapped into the stage's root unit.
  return plan.family == Family::root ? "root" : to_string(config.shard_by_family.at(plan.family).wrap);
}

// Whether a group has one rank, so that nothing is communicated. Rules ensure that an island has several ranks.
bool stays_on_a_rank(const Mesh& mesh, Group group) {
  if (group == Group::dp_island || group == Group::edp_island || group == Group::tied) return false;
  return mesh.group_of(group, 0).size() == 1;
}

}  // namespace

std::int64_t UnitRow::parameters() const {
  return replicated() ? bytes() / size_of(DType::float32) : unit.layout.parameter_size();
}

std::int64_t UnitRow::bytes() const {
  return replicated() ? ReplicatedParameters::bytes(unit.plan.parameters)
                      : unit.layout.unsharded_size() * size_of(unit.precision.stored);
}

std::vector<UnitRow> unit_rows(const ResolvedRun& run) {
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  const ResolvedGroups groups = resolved_groups(config);
  std::vector<UnitRow> rows;
  const std::vector<int> ranks = stage_ranks(config);
  const std::vector<StageBlocks> layout = stage_layout(config);
  for (int stage = 0; stage < config.stages(); ++stage) {
    const int rank = ranks[static_cast<std::size_t>(stage)];
    const Coordinates at = mesh.coordinates(mesh.rank_at(rank, 0, 0, 0, 0));
    for (PlannedUnit& unit : plan_stage(config, mesh, at, stage, layout).units) {
      UnitRow row{stage, std::move(unit)};
      row.wrap = wrap_of(config, row.unit.plan);
      if (!row.unit.frozen) {
        for (const ParameterSpec& parameter : row.unit.plan.parameters) {
          const UpdateGroup group = update_group_of(parameter);
          row.rules[group] = groups[group].rule;
        }
      }
      rows.push_back(std::move(row));
    }
  }
  // The program lists the same units in the same order.
  const Program program = step_program(run, mesh.coordinates(0));
  std::vector<LiveIntegral> integrals;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) integrals.push_back(live_integral(program, rank));
  for (std::size_t u = 0; u < rows.size(); ++u) {
    for (const ProgramCollective& move : program.units[u].collectives) {
      if (!stays_on_a_rank(mesh, move.group)) rows[u].moves.push_back(move);
    }
    const int rank = ranks[static_cast<std::size_t>(rows[u].stage)];
    rows[u].byte_steps = integrals[static_cast<std::size_t>(rank)].unit_byte_steps[u];
  }
  return rows;
}

std::string residency_text(const UnitPolicy& policy) {
  if (policy.residency == Residency::window) return fmt::format("window {}", policy.window_stages);
  if (policy.residency == Residency::island) return fmt::format("island {}", policy.island_ranks);
  return std::string(name_of(policy.residency));
}

std::string reduction_text(const UnitPolicy& policy) {
  if (policy.reduce_every > 1) return fmt::format("every {}", policy.reduce_every);
  return policy.reduce_every == 0 ? "last_microbatch" : "each_microbatch";
}

std::string policy_text(const UnitRow& row) {
  const UnitPolicy& policy = row.unit.policy;
  if (row.unit.plan.family == Family::helpers) return "without gradient";
  const std::string reduction = row.unit.frozen ? "frozen" : fmt::format("reduction {}", reduction_text(policy));
  if (row.replicated()) return reduction;
  const std::string backward = policy.backward_prefetch == BackwardPrefetch::pre
                                   ? ""
                                   : fmt::format(", backward_prefetch {}", name_of(policy.backward_prefetch));
  return fmt::format("{}, residency {}, lookahead {}{}{}, {}{}",
                     row.whole() ? std::string("whole") : fmt::format("sharded over {}", row.unit.layout.shards),
                     residency_text(policy), policy.lookahead, backward, policy.within_stage ? " within its stage" : "",
                     reduction, policy.accumulate_sharded ? ", accumulation sharded" : "");
}

}  // namespace weft
