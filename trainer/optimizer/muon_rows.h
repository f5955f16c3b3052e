// Which parameters Muon takes, and where the ranks of a stage hold their rows.
#pragma once

#include <functional>
#include <vector>

#include "trainer/optimizer/muon.h"
#include "trainer/optimizer/muon_plan.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// Matrices between hidden states: those of the dense and expert families. Vectors, the router, the embedding and the
// head are left to an element-wise optimizer.
bool takes_muon(const ParameterSpec& parameter);
// Whether `config` has Muon step the parameter as one of `group`.
bool steps_by_muon(const Config& config, const ParameterSpec& parameter, UpdateGroup group);
// The groups that have any such parameter, in a fixed order.
std::vector<UpdateGroup> muon_groups(const Config& config);

// The rows of all matrices that `takes` takes and the ranks of one pipeline coordinate own, as each of them computes it
// for itself: a plan needs coordinates only, so nothing is exchanged. By rank, unit and place in the shard. Throws
// Error (failure) naming a matrix that is split by columns.
std::vector<HeldRows> matrix_rows_of(const Config& config, const Mesh& mesh, int pipeline_rank,
                                     const std::function<bool(const ParameterSpec&)>& takes = takes_muon);
// What a step takes on one rank of the mesh, group by group.
std::vector<MuonCost> muon_costs(const Config& config, const Mesh& mesh, int rank);

}  // namespace weft
