// What Weft chooses where a configuration leaves it open how long full parameters and whole gradients stay: families
// with strategy "full_shard" and residency "stage" or reduction "auto".
//
// full_shard promises that only the units in use, and those that lookahead gathers ahead, are whole. resolve_policy
// (unit_policy.h) keeps the promise. Where the memory of a card is known to have room, keeping more can save gathers
// and reductions; then the fastest timing that fits is chosen here.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "trainer/config/config.h"

namespace weft {

// Timings whose steps differ by less are taken to be alike: the one with less memory is better.
inline constexpr double timing_tie = 1.01;

// The configuration with each open choice made: parameters of all families but the experts, parameters of the experts,
// and likewise gradients, are dropped after each use or kept for the step, as a simulated step (step_costs.h) is
// fastest and a dry run (dry_run.h) fits the card. Each family's `why` has the figures of the choice and of the fastest
// other that fits. Where neither hardware.name nor hardware.memory says what a card holds, the promise is kept and
// written out.
Config with_chosen_timing(const Config& config, const Mesh& mesh);

// Each open choice made as for a card of unknown memory. No other choice takes less on the fullest rank.
Config with_least_kept(const Config& config);

// What families with strategy "full_shard" keep whole against its promise, because the configuration as given says so:
// full parameters from the first forward to the last backward, and whole gradients until the last microbatch. A
// sentence each, with the bytes on the pipeline rank that has most and the key that keeps the promise. What is left
// open is no such choice. Throws Error (request) where stages cannot be planned.
std::vector<std::string> kept_whole_warnings(const Config& config);

}  // namespace weft
