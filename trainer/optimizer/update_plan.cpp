#include "trainer/optimizer/update_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trainer/config/update_groups.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/gradient_norm.h"

namespace weft {
namespace {

// Cost of a step on one rank of the mesh, one entry for each of muon_groups().
std::vector<MuonCost> costs_of_muon(const Config& config, const Mesh& mesh, const Coordinates& at) {
  const int rank = mesh.rank_at(at.pp, at.dp_replicate, at.dp_shard, at.cp, at.tp);
  const int rank_of_stage = rank % mesh.degrees().stage_ranks();
  const ResolvedGroups groups = resolved_groups(config);
  std::vector<MuonCost> costs;
  for (const auto& [group, plan] : muon_plans(config, mesh, at.pp)) {
    costs.push_back(muon_costs(plan, groups[group].newton_schulz)[static_cast<std::size_t>(rank_of_stage)]);
  }
  return costs;
}

}  // namespace

bool takes_muon(const ParameterSpec& parameter) {
  const bool hidden = parameter.family == Family::dense || parameter.family == Family::experts;
  return hidden && parameter.global_columns > 1 && parameter.global_rows > 1;
}

bool steps_by_muon(const Config& config, const ParameterSpec& parameter, UpdateGroup group) {
  return takes_muon(parameter) && update_group_of(parameter) == group && config.training.trains(parameter.family) &&
         resolved_groups(config)[group].rule == UpdateRule::muon;
}

std::vector<UpdateGroup> muon_groups(const Config& config) {
  std::vector<UpdateGroup> groups;
  const ResolvedGroups resolved = resolved_groups(config);
  for (const UpdateGroup group : {UpdateGroup::dense, UpdateGroup::experts}) {
    if (resolved[group].rule == UpdateRule::muon) groups.push_back(group);
  }
  return groups;
}

std::map<UpdateGroup, MatrixPlan> muon_plans(const Config& config, const Mesh& mesh, int pipeline_rank) {
  std::map<UpdateGroup, MatrixPlan> plans;
  for (const UpdateGroup group : muon_groups(config)) {
    const auto takes = [&](const ParameterSpec& parameter) { return steps_by_muon(config, parameter, group); };
    const auto held = matrix_rows_of(config, mesh, pipeline_rank, takes);
    plans.emplace(group, plan_matrices(held, mesh.degrees().stage_ranks()));
  }
  return plans;
}

std::vector<HeldRows> matrix_rows_of(const Config& config, const Mesh& mesh, int pipeline_rank,
                                     const std::function<bool(const ParameterSpec&)>& takes) {
  std::vector<HeldRows> held;
  for_each_stage(config, mesh, pipeline_rank, [&](int world_rank, const PlannedStage& stage, bool) {
    const int rank = world_rank % mesh.degrees().stage_ranks();
    const Coordinates at = mesh.coordinates(world_rank);
    for (const PlannedUnit& unit : stage.units) {
      if (std::ranges::none_of(unit.plan.parameters, takes)) continue;
      const bool counts = counts_unit(unit, mesh, world_rank);
      const int shard = unit.layout.shards == 1 ? 0 : mesh.steps(unit.shard_group).place(world_rank);
      for (const RowBlock& block : unit.layout.rows_of_shard(shard)) {
        const ParameterSpec& spec = unit.layout.parameters[block.parameter];
        if (!takes(spec)) continue;
        if (spec.columns != spec.global_columns) {
          fail("{} is split by columns, and Muon puts matrices together from whole rows", spec.name);
        }
        held.push_back({rank, spec.name, spec.global_rows, spec.columns, spec.transposed,
                        spec.row_begin + block.row_begin, block.rows, counts && counts_parameter(unit, spec, at)});
      }
    }
  });
  return held;
}

std::vector<std::string> parameters_with_norms(const Config& config) {
  const ResolvedGroups groups = resolved_groups(config);
  const auto needs_norms = [](const OptimizerConfig& options) { return needs_of(options.rule) == Needs::tensor_norms; };
  // Most rules need no norms; the return saves the list of parameters, which may have a hundred thousand entries.
  if (std::ranges::none_of(groups, needs_norms)) return {};
  std::vector<std::string> names;
  for (ParameterSpec& parameter : model_parameters(config.model)) {
    const OptimizerConfig& options = groups[update_group_of(parameter)];
    if (needs_norms(options)) names.push_back(std::move(parameter.name));
  }
  return names;
}

std::vector<ProgramCollective> update_collectives(const Config& config, const Mesh& mesh, const Coordinates& at) {
  constexpr std::int64_t width = size_of(DType::float64);
  // The squared norm and the loss (StepSums::sum_for_update).
  std::vector<ProgramCollective> collectives = {
      {Op::gradient_norm, CollectiveOp::all_reduce, Group::world, 1, 2 * width}};
  if (const std::int64_t tensors = std::ssize(parameters_with_norms(config)); tensors > 0) {
    collectives.push_back({Op::optimizer_step, CollectiveOp::all_reduce, Group::world, 1, 2 * tensors * width});
  }
  for (const MuonCost& cost : costs_of_muon(config, mesh, at)) {
    std::ranges::copy_if(cost.collectives, std::back_inserter(collectives),
                         [](const ProgramCollective& part) { return part.count > 0; });
  }
  return collectives;
}

BucketBytes update_bytes(const Config& config, const Mesh& mesh, const Coordinates& at) {
  BucketBytes most;
  for (const MuonCost& cost : costs_of_muon(config, mesh, at)) {
    if (cost.at_peak.total() > most.total()) most = cost.at_peak;
  }
  return most;
}

}  // namespace weft
