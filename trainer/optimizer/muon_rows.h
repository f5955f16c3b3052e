// The parameters that Muon updates, and the rows of them that each rank of a stage holds.
#pragma once

#include <functional>
#include <vector>

#include "trainer/optimizer/muon.h"
#include "trainer/optimizer/muon_plan.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// Whether the parameter is a matrix between hidden states, of the dense or expert family. Vectors, the router, the
// embedding and the head are updated by an element-wise rule.
bool takes_muon(const ParameterSpec& parameter);
// Whether Muon updates the parameter under `config`, as a member of `group`.
bool steps_by_muon(const Config& config, const ParameterSpec& parameter, UpdateGroup group);
// The groups with the rule muon: dense, then experts.
std::vector<UpdateGroup> muon_groups(const Config& config);

// Rows of all matrices accepted by `takes` that the ranks of one pipeline coordinate own. Every rank computes them for
// itself: a plan needs coordinates only, so nothing is exchanged. Ordered by rank, unit and place in the shard. Throws
// Error (failure) naming a matrix that is split by columns.
std::vector<HeldRows> matrix_rows_of(const Config& config, const Mesh& mesh, int pipeline_rank,
                                     const std::function<bool(const ParameterSpec&)>& takes = takes_muon);
// The matrices of a group of muon_groups() on one pipeline coordinate, planned alike on all its ranks.
struct GroupMatrices {
  UpdateGroup group;
  MatrixPlan plan;
};
std::vector<GroupMatrices> muon_plans(const Config& config, const Mesh& mesh, int pipeline_rank);
// Cost of a step on one rank of the mesh, one entry for each of muon_groups().
std::vector<MuonCost> muon_costs(const Config& config, const Mesh& mesh, int rank);

}  // namespace weft
