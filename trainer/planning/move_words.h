// How each move is said on the command line. All are functions of a configuration to strengths of a move, mildest
// first (moves.h).
#pragma once

#include <vector>

#include "trainer/planning/moves.h"

namespace weft::move_words {

using Strengths = std::vector<MoveWords>;

Strengths recompute_selective(const Config& config);
Strengths recompute_full(const Config& config);
// Fewer sequences at a time, the batch being what it was.
Strengths smaller_microbatch(const Config& config);
// The next degrees that halve something, out of the data ranks as long as there are any, so that the world stays; with
// none left over more ranks.
Strengths more_tensor(const Config& config);
Strengths more_context(const Config& config);
Strengths more_pipeline(const Config& config);
// Over ranks that are there.
Strengths more_expert(const Config& config);
// Replicas of shards become shards.
Strengths fewer_replicas(const Config& config);
// Those that have fewer microbatches in flight.
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
// Rules that keep fewer states beside a parameter.
Strengths leaner_rule(const Config& config);
// In place of Muon, which gathers whole matrices.
Strengths rule_of_elements(const Config& config);

}  // namespace weft::move_words
