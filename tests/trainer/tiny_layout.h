// A layout of the tiny run in one line, for tests that compare many of them.
#pragma once

#include <ostream>
#include <string>

#include "tests/trainer/tiny_run.h"

namespace weft {

struct TinyLayout {
  std::string name = {};
  std::string layers = "d*4";
  Degrees degrees = {};
  std::string schedule = "1f1b";
  std::string residency = "stage", reduction = "last_microbatch";
  ShardStrategy strategy = ShardStrategy::full_shard;
  PrecisionConfig precision = {};
  int lookahead = 1;
  bool accumulate_sharded = false;
  std::string wrap = "block";
  std::set<Family> frozen = {};
  int reduce_inputs = 1;
  int chunks = 1;
  int microbatch_group = 0;
  bool tied = false;  // one weight for embedding and head
  Recompute recompute = Recompute::none;
  AuxiliaryLoss aux_loss = AuxiliaryLoss::sequence;
  bool wide = false;            // sizes that products in float8 can have
  std::string stages = "auto";  // pipeline.layout
  bool weights_at_experts = false;
};

inline Config config_of(const TinyLayout& layout) {
  Config config = tiny_config(layout.layers);
  config.parallelism = layout.degrees;
  config.pipeline.schedule = layout.schedule;
  config.pipeline.chunks = layout.chunks;
  config.pipeline.layout = layout.stages;
  config.pipeline.microbatch_group = layout.microbatch_group;
  config.precision = layout.precision;
  config.shard = {.strategy = layout.strategy,
                  .residency = parse_residency(layout.residency),
                  .lookahead = layout.lookahead,
                  .reduction = parse_reduction(layout.reduction),
                  .accumulation = layout.accumulate_sharded ? Accumulation::sharded : Accumulation::by_strategy,
                  .wrap = parse_wrap(layout.wrap)};
  config.reduce_inputs = layout.reduce_inputs;
  config.model.tie_word_embeddings = layout.tied;
  config.training.frozen = layout.frozen;
  config.training.recompute = layout.recompute;
  config.training.weights_at_experts = layout.weights_at_experts;
  config.model.moe.aux_loss = layout.aux_loss;
  if (layout.wide) {
    config.model.hidden_size = 48;
    config.model.head_dim = 16;
    config.model.intermediate_size = 96;
    config.model.moe.moe_intermediate_size = 64;
    if (config.model.moe.shared_expert_intermediate_size > 0) config.model.moe.shared_expert_intermediate_size = 32;
  }
  for (auto& [family, policy] : config.shard_by_family) policy = config.shard;
  return config;
}

inline void PrintTo(const TinyLayout& layout, std::ostream* out) {
  *out << layout.name;
}

}  // namespace weft
