#include "trainer/pipeline_order.h"

#include "parallel/pipeline/passes.h"

namespace weft {

int stage_count(const Config& config) {
  return config.parallelism.pipeline * config.pipeline.chunks;
}

std::vector<int> stage_ranks(const Config& config) {
  const Placement placement = find_schedule(config.pipeline.schedule).placement;
  std::vector<int> ranks;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    ranks.push_back(rank_of(placement, config.parallelism.pipeline, stage));
  }
  return ranks;
}

std::vector<int> stages_of_rank(const Config& config, int pipeline_rank) {
  const std::vector<int> ranks = stage_ranks(config);
  std::vector<int> stages;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    if (ranks[static_cast<std::size_t>(stage)] == pipeline_rank) stages.push_back(stage);
  }
  return stages;
}

OrderInput order_input(const Config& config) {
  return {.ranks = config.parallelism.pipeline,
          .chunks = config.pipeline.chunks,
          .microbatches = static_cast<int>(config.microbatches()),
          .microbatch_group = config.pipeline.microbatch_group};
}

Program compile_step(const Config& config, const ProgramTables& tables) {
  return compile(tables, find_schedule(config.pipeline.schedule), order_input(config));
}

}  // namespace weft
