// Generating text, planned: a forward program of one microbatch (forward_plan.h) whose attention reads a cache and
// whose head gives logits. Every data rank computes the same.
#pragma once

#include <map>

#include "layers/cached_attention.h"
#include "trainer/inference/forward_plan.h"

namespace weft {

// The configuration of a model that generates: without_training(), with one microbatch a pass. Throws Error (request)
// where context parallelism cuts a sequence, whose cache lies with one rank.
Config for_generation(Config config);

// One pass of this shape, on the rank with these coordinates. `config` is for_generation().
ForwardPlan plan_generation(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const GenerationShape& shape);

// What the rank keeps from pass to pass, by attention block.
std::map<int, CacheSize> planned_caches(const Config& config, const Coordinates& at, std::int64_t sequences,
                                        std::int64_t capacity);

}  // namespace weft
