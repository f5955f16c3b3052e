// What GRAD_NORM and STEP take on one rank, known before anything is allocated: the norm is summed over the world,
// rules that need norms of whole parameters sum those, and rules that need whole matrices exchange their rows.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"

namespace weft {

// Names of the parameters whose update wants the norms of whole tensors, in an order that all ranks agree on.
std::vector<std::string> parameters_with_norms(const Config& config);
std::vector<UpdateCollective> update_collectives(const Config& config, const Mesh& mesh, const Coordinates& at);
// The most that STEP holds at once.
BucketBytes update_bytes(const Config& config, const Mesh& mesh, const Coordinates& at);

}  // namespace weft
