// Checks of sharding and ownership before training: converts the plans of ranks into the plain values of
// parallel/shard/verify.h and ownership.h.
#pragma once

#include <optional>
#include <vector>

#include "parallel/shard/ownership.h"
#include "parallel/shard/verify.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/rank_stages.h"

namespace weft {

// Every rank's rows of every parameter. Rows of frozen families have no update rule. Only plans; allocates nothing.
OwnerTable owner_table(const Config& config, const Mesh& mesh);
// The parameters of the model as a single rank would hold them, with the number of copies of each in the layout.
std::vector<GlobalParameter> global_parameters(const Config& config, const Mesh& mesh);
// Throws Error (failure) with all rows that are not owned exactly once in each replica, by one rule.
void require_sound_ownership(const OwnerTable& table, const std::vector<GlobalParameter>& parameters);

// Description of a stage of `rank`, from `planned`, a fresh plan, the mesh and the sizes of the model. `stepped`: the
// rows given to its optimizer, if there is one.
StageDescription describe_stage(const Config& config, const Mesh& mesh, int rank, const PlannedStage& planned,
                                std::optional<std::vector<OwnedRange>> stepped = std::nullopt);

// Throws Error (failure) with all faults in the stages of the rank. All ranks would see the same owner table: rank 0
// checks it, if ranks x parameters are at most a million. For a larger run use owner_table().
void verify_step(const Config& config, const Mesh& mesh, int rank, RankStages& stages);

}  // namespace weft
