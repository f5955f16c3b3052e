// Chooses how long full parameters and whole gradients stay if a configuration leaves it open. It does for families
// with strategy "full_shard" and residency "stage", or reduction and accumulation "auto".
//
// full_shard promises that only the units in use, and those that lookahead gathers ahead, are whole. resolve_policy
// (unit_policy.h) keeps the promise. If the memory of a card is known to have room, keeping more can save gathers and
// reductions. Then the fastest timing that fits is chosen here.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "trainer/config/config.h"

namespace weft {

// Steps that differ by less than this factor count as equally fast: the timing with less memory is better.
inline constexpr double timing_tie = 1.01;

// The configuration with each open choice made. Parameters and gradients, of the experts and of all other families, are
// dropped after each use or kept for the step. The choice makes a simulated step (step_costs.h) fastest among those
// whose dry run (dry_run.h) fits the card. Each family's `why` has the figures of the choice and of the fastest
// alternative, preferably one that fits. If neither hardware.name nor hardware.memory gives the memory of a card, the
// promise is kept and written out.
Config with_chosen_timing(const Config& config, const Mesh& mesh);

// Each open choice made as for a card of unknown memory. No other choice takes less memory on the fullest rank.
Config with_least_kept(const Config& config);

// Warnings about families with strategy "full_shard" that keep more whole than it promises, because the configuration
// says so. They keep full parameters from the first forward to the last backward, and whole gradients until the last
// microbatch. A sentence each, with the bytes on the fullest pipeline rank and the key that keeps the promise. Open
// choices cause no warning. Throws Error (request) if stages cannot be planned.
std::vector<std::string> kept_whole_warnings(const Config& config);

}  // namespace weft
