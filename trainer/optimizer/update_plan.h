// Communication and memory of GRAD_NORM and STEP on one rank, known before anything is allocated. The gradient norm is
// summed over the world. Rules that need norms of whole parameters sum these norms; rules that need whole matrices
// exchange rows.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"

namespace weft {

// Names of the parameters with a rule that needs norms of whole tensors, in the same order on all ranks.
std::vector<std::string> parameters_with_norms(const Config& config);
std::vector<ProgramCollective> update_collectives(const Config& config, const Mesh& mesh, const Coordinates& at);
// Bytes that STEP allocates, at its peak.
BucketBytes update_bytes(const Config& config, const Mesh& mesh, const Coordinates& at);

}  // namespace weft
