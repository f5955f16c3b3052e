#include "trainer/optimizer/update_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trainer/config/update_groups.h"
#include "trainer/optimizer/muon_rows.h"

namespace weft {
namespace {

int rank_of(const Mesh& mesh, const Coordinates& at) {
  return mesh.rank_at(at.pp, at.dp_replicate, at.dp_shard, at.cp, at.tp);
}

}  // namespace

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
  for (const MuonCost& cost : muon_costs(config, mesh, rank_of(mesh, at))) {
    std::ranges::copy_if(cost.collectives, std::back_inserter(collectives),
                         [](const ProgramCollective& part) { return part.count > 0; });
  }
  return collectives;
}

BucketBytes update_bytes(const Config& config, const Mesh& mesh, const Coordinates& at) {
  BucketBytes most;
  for (const MuonCost& cost : muon_costs(config, mesh, rank_of(mesh, at))) {
    if (cost.at_peak.total() > most.total()) most = cost.at_peak;
  }
  return most;
}

}  // namespace weft
