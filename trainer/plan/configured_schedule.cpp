#include "trainer/plan/configured_schedule.h"

#include <fmt/format.h>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

std::vector<int> stage_ranks(const Config& config) {
  if (config.pipeline.own_order) return config.pipeline.own_order->stage_ranks;
  const Placement placement = find_schedule(config.pipeline.schedule).placement;
  std::vector<int> ranks;
  for (int stage = 0; stage < config.stages(); ++stage) {
    ranks.push_back(rank_of(placement, config.parallelism.pipeline, stage));
  }
  return ranks;
}

std::vector<int> stages_of_rank(const Config& config, int pipeline_rank) {
  const std::vector<int> ranks = stage_ranks(config);
  std::vector<int> stages;
  for (int stage = 0; stage < config.stages(); ++stage) {
    if (ranks[stage] == pipeline_rank) stages.push_back(stage);
  }
  return stages;
}

OrderInput order_input(const Config& config) {
  return {.ranks = config.parallelism.pipeline,
          .chunks = config.pipeline.chunks,
          .microbatches = static_cast<int>(config.microbatches()),
          .microbatch_group = config.pipeline.microbatch_group};
}

std::vector<std::vector<Action>> compute_order(const Config& config) {
  if (config.pipeline.own_order) return config.pipeline.own_order->ranks;
  return find_schedule(config.pipeline.schedule).order(order_input(config));
}

Program schedule_only_step(const Config& config) {
  Program program;
  program.microbatches = static_cast<int>(config.microbatches());
  program.ranks = compute_order(config);
  for (const int rank : stage_ranks(config)) program.stages.push_back({.rank = rank});
  return program;
}

double even_bubble(const Program& program) {
  const Simulation simulation = simulate(program, even_costs(program));
  const auto ranks = static_cast<int>(program.ranks.size());
  double idle = 0.0;
  for (int rank = 0; rank < ranks; ++rank) idle += rank_times(program, simulation, rank).bubble;
  return idle / ranks / simulation.seconds;
}

std::vector<std::string> microbatch_warnings(const Config& config) {
  const int ranks = config.parallelism.pipeline;
  const std::int64_t microbatches = config.microbatches();
  if (microbatches >= ranks) return {};
  return {
      fmt::format("{} microbatches a step on {} pipeline ranks leave a bubble of {:.0f} % where all stages take as "
                  "long; training.global_batch_size = {} would make {} microbatches",
                  microbatches, ranks, 100.0 * even_bubble(schedule_only_step(config)),
                  config.training.global_batch_size / microbatches * ranks, ranks)};
}

Program lower_step(const Config& config, const ProgramTables& tables) {
  if (config.pipeline.own_order) return lower_order(tables, *config.pipeline.own_order);
  return lower_order(tables, find_schedule(config.pipeline.schedule), order_input(config));
}

}  // namespace weft
