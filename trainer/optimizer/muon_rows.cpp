#include "trainer/optimizer/muon_rows.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "trainer/gradient_norm.h"

namespace weft {
namespace {

// Where a rank stands among the holders of a unit.
struct Place {
  std::int64_t shard = 0;
  bool first = false;
};

Place place_of(const PlannedUnit& unit, const Mesh& mesh, int rank) {
  const std::vector<int> members = mesh.group_of(unit.shard_group, rank);
  const auto position = std::find(members.begin(), members.end(), rank) - members.begin();
  return {unit.layout.shards == 1 ? 0 : position, counts_unit(unit, mesh, rank)};
}

}  // namespace

bool takes_muon(const ParameterSpec& parameter) {
  const bool hidden = parameter.family == Family::dense || parameter.family == Family::experts;
  return hidden && parameter.global_columns > 1 && parameter.global_rows > 1;
}

std::vector<HeldRows> matrix_rows_of_stage(const Config& config, const Mesh& mesh, int stage) {
  // Layouts differ along these axes only.
  std::map<std::tuple<int, int, int>, PlannedStage> stages;
  std::vector<HeldRows> held;
  const int ranks = mesh.degrees().stage_ranks();
  for (int rank = 0; rank < ranks; ++rank) {
    const int world_rank = stage * ranks + rank;
    const Coordinates at = mesh.coordinates(world_rank);
    const std::tuple axes(at.tp, at.ep, at.etp);
    if (!stages.contains(axes)) stages.emplace(axes, plan_stage(config, mesh, at, stage));
    // Finding a group looks at the whole world, so it is done once for units that share theirs.
    std::map<std::pair<Family, bool>, Place> places;
    for (const PlannedUnit& unit : stages.at(axes).units) {
      const auto& specs = unit.plan.parameters;
      if (std::none_of(specs.begin(), specs.end(), takes_muon)) continue;
      const std::pair kind(unit.plan.family, unit.layout.shards == 1);
      if (!places.contains(kind)) places.emplace(kind, place_of(unit, mesh, world_rank));
      const Place& place = places.at(kind);
      for (const RowBlock& block : unit.layout.rows_of_shard(place.shard)) {
        const ParameterSpec& spec = unit.layout.parameters[block.parameter];
        if (!takes_muon(spec)) continue;
        if (spec.columns != spec.global_columns) {
          fail("{} is split by columns, and Muon puts matrices together from whole rows", spec.name);
        }
        held.push_back({rank, spec.name, spec.global_rows, spec.columns, spec.transposed,
                        spec.row_begin + block.row_begin, block.rows, place.first && counts_parameter(unit, spec, at)});
      }
    }
  }
  return held;
}

}  // namespace weft
