// The plan of text generation: a forward program of one microbatch (forward_plan.h). Attention reads a cache and the
// head returns logits. Every data rank computes the same.
#pragma once

#include <map>

#include "layers/cached_attention.h"
#include "trainer/inference/forward_plan.h"

namespace weft {

// The configuration for generation: without_training(), with one microbatch a pass. Throws Error (request) for context
// parallelism: it splits a sequence, and the cache of a sequence is on one rank.
Config for_generation(Config config);

// The plan of a pass of this shape, on the rank with these coordinates. `config` is from for_generation().
ForwardPlan plan_generation(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const GenerationShape& shape);

// Sizes of the caches that the rank keeps between passes, by block.
std::map<int, CacheSize> planned_caches(const Config& config, const Coordinates& at, std::int64_t sequences,
                                        std::int64_t capacity);

}  // namespace weft
