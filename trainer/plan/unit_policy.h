// What the configuration of a family means for its units on a stage. A strategy is a preset over the three inputs of a
// policy; what is written beside it wins, and what contradicts it is refused (config_rules.cpp):
//
//   strategy        parameters at rest, in a step         gradients between microbatches    state
//   full_shard      sharded, dropped after each use       sharded: reduced after each one   sharded   ZeRO-3
//   shard_grad_op   sharded, gathered once a step         sharded: reduced after each one   sharded   ZeRO-2
//   optimizer       sharded, gathered once a step         whole until the last one          sharded   ZeRO-1
//   no_shard        whole                                 whole until the last one          whole     DDP
//
// Of full_shard both are what is promised without further knowledge: chosen_timing.h keeps more where it fits and pays.
// data_replicate > 1 makes the hybrid of each: sharded inside, summed over the replicas outside.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/shard/unit.h"
#include "parallel/shard/unit_plan.h"
#include "trainer/config/config.h"

namespace weft {

// Ranks over which a unit of this family is sharded when it is.
std::int64_t shard_ranks(const Degrees& degrees, Family family);

// Whether the choice is left to Weft: residency "stage", and reduction "auto", of full_shard.
bool leaves_residency_open(const ShardPolicy& policy);
bool leaves_reduction_open(const ShardPolicy& policy);
// Whether open reductions may add gradients up in shards. Two copies of a tied weight in 16-bit reduction may not:
// their sum is rounded once (TIE_GRAD), so it is whole until then.
bool may_add_up_in_shards(const Config& config, Family family);
// What full_shard then means, where nothing says that memory is free.
std::string promise_text(const ShardPolicy& policy);

// `reason` says in words why parameters stay as long as they do. Throws Error (request) for a family without a policy.
UnitPolicy resolve_policy(const Config& config, Family family, int stage);

UnitPrecision unit_precision(const Config& config, Family family);

// How parameters are wrapped into the units of a stage. Families share a unit only where all that is said of them is
// the same.
WrapRules wrap_rules(const Config& config, int stage);

// What a user should know about how the families that the model has are wrapped, a sentence each.
std::vector<std::string> shard_warnings(const Config& config);

// The group over which a unit of this family is sharded.
Group shard_group(const Degrees& degrees, Family family);
// Ranks of a shard group among which parameters stay after a forward (parallel/shard/unit.h).
struct Island {
  Group shard_group = Group::dp_shard;
  int ranks = 0;
  auto operator<=>(const Island&) const = default;
};

// All that units of the model have.
std::set<Island> islands_of(const Config& config);

}  // namespace weft
