// Whether what is about to be trained is sharded soundly, and who owns what: the plans of ranks put into the plain
// values of parallel/shard/verify.h and ownership.h.
#pragma once

#include <optional>
#include <vector>

#include "parallel/shard/ownership.h"
#include "parallel/shard/verify.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/rank_stages.h"

namespace weft {

// Every rank's rows of every parameter; no rule steps those of frozen families. Planning alone: nothing is allocated.
OwnerTable owner_table(const Config& config, const Mesh& mesh);
// The parameters of the model as one rank would hold them, and how many copies of each the layout keeps.
std::vector<GlobalParameter> global_parameters(const Config& config, const Mesh& mesh);
// Throws Error (failure) with everything that is not owned exactly once in each replica, by one rule.
void require_sound_ownership(const OwnerTable& table, const std::vector<GlobalParameter>& parameters);

// What `rank` holds as `planned` says, seen against a fresh plan, the mesh and the sizes of the model. `stepped`: what
// its optimizer was given, once there is one.
StageDescription describe_stage(const Config& config, const Mesh& mesh, int rank, const PlannedStage& planned,
                                std::optional<std::vector<OwnedRange>> stepped = std::nullopt);

// Throws Error (failure) with all that is wrong with the stages of the rank. All ranks would see the same owner table:
// the first looks it over, where ranks x parameters are at most a million; that of a larger run `owner_table` gives.
void verify_step(const Config& config, const Mesh& mesh, int rank, RankStages& stages);

}  // namespace weft
