// Command-line words of each remedy. Every function maps a configuration to the strengths of a remedy, mildest first
// (remedies.h).
#pragma once

#include <vector>

#include "trainer/planning/remedies.h"

namespace weft::remedy_overrides {

using Strengths = std::vector<RemedyOverrides>;

Strengths recompute_selective(const Config& config);
Strengths recompute_full(const Config& config);
// Fewer sequences in a microbatch, the batch unchanged.
Strengths smaller_microbatch(const Config& config);
// The next degrees that halve something. Ranks come from the data degrees as long as there are any, so that the world
// stays the same; afterwards the world grows.
Strengths more_tensor(const Config& config);
Strengths more_context(const Config& config);
Strengths more_pipeline(const Config& config);
// Over the ranks of the configuration.
Strengths more_expert(const Config& config);
// Replicas become shards.
Strengths fewer_replicas(const Config& config);
// Schedules with fewer microbatches in flight.
Strengths leaner_schedule(const Config& config);
Strengths stronger_strategy(const Config& config);
Strengths shorter_residency(const Config& config);
Strengths shorter_lookahead(const Config& config);
Strengths smaller_wrap(const Config& config);
Strengths reduce_each_microbatch(const Config& config);
Strengths accumulate_shards(const Config& config);
Strengths fewer_reduce_inputs(const Config& config);
Strengths narrow_reduction(const Config& config);
Strengths narrow_compute(const Config& config);
Strengths narrow_state(const Config& config);
Strengths narrow_parameters(const Config& config);
// Update rules with fewer states per parameter.
Strengths leaner_rule(const Config& config);
// Element-wise rules instead of Muon, which gathers whole matrices.
Strengths rule_of_elements(const Config& config);

}  // namespace weft::remedy_overrides
