// The parameters that Muon updates, with the rows of them that each rank of a stage holds. Then communication and
// memory of GRAD_NORM and STEP on one rank, known before anything is allocated. The gradient norm is summed over the
// world. Rules that need norms of whole parameters sum these norms; rules that need whole matrices exchange rows.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"
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
// The matrices of each of muon_groups() on one pipeline coordinate, planned alike on all its ranks.
std::map<UpdateGroup, MatrixPlan> muon_plans(const Config& config, const Mesh& mesh, int pipeline_rank);

// Names of the parameters with a rule that needs norms of whole tensors, in the same order on all ranks.
std::vector<std::string> parameters_with_norms(const Config& config);
std::vector<ProgramCollective> update_collectives(const Config& config, const Mesh& mesh, const Coordinates& at);
// Bytes that STEP allocates, at its peak.
BucketBytes update_bytes(const Config& config, const Mesh& mesh, const Coordinates& at);

}  // namespace weft
