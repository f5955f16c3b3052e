// The policy of a family's units on a stage, from the configuration. A strategy is a preset over the three inputs of a
// policy. Keys written beside it win, and contradictions are refused (config_shard_rules.cpp):
//
//   strategy        parameters at rest, in a step         gradients between microbatches    state
//   full_shard      sharded, dropped after each use       sharded: reduced after each one   sharded   ZeRO-3
//   shard_grad_op   sharded, gathered once a step         sharded: reduced after each one   sharded   ZeRO-2
//   optimizer       sharded, gathered once a step         whole until the last one          sharded   ZeRO-1
//   no_shard        whole                                 whole until the last one          whole     DDP
//
// A stage's root unit stays from forward to backward under full_shard unless its residency is given (PyTorch's rule).
// Other units that a backward begins with stay where it follows at once, whatever the residency (pass_residency.cpp).
// For full_shard, the table is the promise without knowledge of free memory; chosen_timing.h keeps more if that fits
// and pays. data_replicate > 1 makes the hybrid of each strategy: sharded within a replica, summed over the replicas.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/shard/unit.h"
#include "parallel/shard/unit_plan.h"
#include "trainer/config/config.h"

namespace weft {

// Whether the model has units of this family.
bool has_family(const Config& config, Family family);

// Whether families have residency "auto", which is solved (solved_timing.h): all do, or none (config_shard_rules.cpp).
bool is_solved(const Config& config);

// Ranks over which units of this family are sharded, if they are.
std::int64_t shard_ranks(const Degrees& degrees, Family family);

// Whether Weft chooses, for full_shard only: residency "stage" without a list, and reduction and accumulation "auto"
// without residency "auto".
bool leaves_residency_open(const ShardPolicy& policy);
bool leaves_reduction_open(const ShardPolicy& policy);
// Whether a weight of the family may have copies on several stages: a tied one, and those that predictors share.
bool has_copies(const Config& config, Family family);
// Whether open reductions may accumulate gradients in shards. The copies of a tied weight with 16-bit reduction may
// not: their sum is rounded once (TIE_GRAD), so gradients stay whole until then.
bool may_add_up_in_shards(const Config& config, Family family);
// The promise of full_shard, kept while no memory is known to be free, and its reason in words.
struct PromisedResidency {
  Residency residency = Residency::reshard_after_use;
  std::string why;
};
PromisedResidency promised_residency(const ShardPolicy& policy, Family family);

// Of replicated parameters of the family.
UnitPolicy replicated_policy(const Config& config, Family family);
// `reason` says in words why parameters stay that long. Throws Error (request) for a family without a policy.
UnitPolicy resolve_policy(const Config& config, Family family, int stage);

UnitPrecision unit_precision(const Config& config, Family family);

// Rules that wrap parameters into the units of a stage. Families share a unit only if all their settings are equal.
WrapRules wrap_rules(const Config& config, int stage);

// Warnings about the wrapping of the families that the model has, a sentence each.
std::vector<std::string> shard_warnings(const Config& config);

// The group over which a unit of this family is sharded.
Group shard_group(const Degrees& degrees, Family family);
// A group of ranks in a shard group that keep parameters among them after a forward (parallel/shard/unit.h).
struct Island {
  Group shard_group = Group::dp_shard;
  int ranks = 0;
  auto operator<=>(const Island&) const = default;
};

// All islands that units of the model have.
std::set<Island> islands_of(const Config& config);

}  // namespace weft
