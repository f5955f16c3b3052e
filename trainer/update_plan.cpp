#include "trainer/update_plan.h"

#include "trainer/optimizer/groups.h"
#include "trainer/optimizer/muon_rows.h"

namespace weft {
namespace {

int rank_of(const Mesh& mesh, const Coordinates& at) {
  return mesh.rank_at(at.pp, at.dp_replicate, at.dp_shard, at.cp, at.tp);
}

std::int64_t parameters_with_norms(const Config& config) {
  const ResolvedGroups groups = resolved_groups(config);
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : model_parameters(config.model)) {
    const UpdateRule rule = groups[static_cast<std::size_t>(update_group_of(parameter))].rule;
    if (needs_of(rule) == Needs::tensor_norms) ++count;
  }
  return count;
}

}  // namespace

std::vector<UpdateCollective> update_collectives(const Config& config, const Mesh& mesh, const Coordinates& at) {
  constexpr std::int64_t width = size_of(DType::float64);
  std::vector<UpdateCollective> collectives = {{Op::gradient_norm, CollectiveOp::all_reduce, Group::world, 1, width}};
  if (const std::int64_t tensors = parameters_with_norms(config); tensors > 0) {
    collectives.push_back({Op::optimizer_step, CollectiveOp::all_reduce, Group::world, 1, 2 * tensors * width});
  }
  for (const MuonCost& cost : muon_costs(config, mesh, rank_of(mesh, at))) {
    for (const MuonCollective& part : cost.collectives) {
      if (part.count == 0) continue;
      collectives.push_back({Op::optimizer_step, part.op, part.group, part.count, part.bytes});
    }
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
