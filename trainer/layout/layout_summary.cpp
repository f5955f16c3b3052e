#include "trainer/layout/layout_summary.h"

#include <algorithm>

#include "parallel/pipeline/orders/orders.h"
#include "trainer/config/layout_text.h"
#include "trainer/costs/step_flops.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

// A rank's segments declare the experts of one expert rank. All other expert ranks have as many of the same size.
void count_parameters(const Config& config, const PlannedStage& planned, StageSummary& summary) {
  std::int64_t experts = 0;
  for (const ScopedParameters& piece : pieces_of(planned.segments)) {
    for (const ParameterSpec& parameter : piece.parameters) {
      (parameter.family == Family::experts ? experts : summary.parameters) += parameter.global_size();
    }
  }
  experts *= config.parallelism.expert;
  summary.active_parameters = summary.parameters;
  const MoeConfig& moe = config.model.moe;
  if (experts > 0) summary.active_parameters += experts * moe.num_experts_per_tok / moe.num_experts;
  summary.parameters += experts;
}

double stage_flops(const Config& config, const StageBlocks& blocks) {
  const ModelConfig& model = config.model;
  double flops = blocks.head ? head_flops(model) : 0.0;
  for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
    const ModelBlock& each = model.blocks[block];
    flops += block_token_flops(model, each, config.training.sequence_length).total();
    if (block >= model.layers()) flops += merge_flops(model) + head_flops(model);
  }
  return flops;
}

double stage_cost(const LayoutItems& items, const StageBlocks& blocks) {
  double cost = (blocks.embedding ? items.embedding.cost : 0.0) + (blocks.head ? items.head.cost : 0.0);
  const int end = std::min(blocks.first + blocks.count, static_cast<int>(items.blocks.size()));
  for (int block = blocks.first; block < end; ++block) cost += items.blocks[block].cost;
  return cost;
}

template <typename Summary>
void compare_loads(std::vector<Summary>& all) {
  double sum = 0;
  for (const Summary& one : all) sum += one.cost;
  for (Summary& one : all) one.load = one.cost * static_cast<double>(all.size()) / sum;
}

std::string placement_of(const Config& config) {
  if (config.pipeline.own_order) return "own";
  return find_schedule(config.pipeline.schedule).placement == Placement::v ? "v" : "looped";
}

}  // namespace

void LayoutDemands::add(const LayoutDemands& other) {
  parameters += other.parameters;
  active_parameters += other.active_parameters;
  forward_flops += other.forward_flops;
  parameter_bytes += other.parameter_bytes;
  gradient_bytes += other.gradient_bytes;
  optimizer_bytes += other.optimizer_bytes;
  cost += other.cost;
}

double LayoutSummary::stage_imbalance() const {
  return std::ranges::max_element(stages, {}, &StageSummary::load)->load;
}

double LayoutSummary::rank_imbalance() const {
  return std::ranges::max_element(ranks, {}, &RankSummary::load)->load;
}

LayoutSummary summarize_layout(const Config& config) {
  return summarize_layout(config, stage_layout(config));
}

LayoutSummary summarize_layout(const Config& config, const std::vector<StageBlocks>& layout) {
  const Mesh mesh(config.parallelism);
  LayoutSummary summary{.layout = to_string(layout, config.model),
                        .schedule = config.pipeline.schedule,
                        .placement = placement_of(config)};
  const std::vector<int> rank_of_stage = stage_ranks(config);
  const LayoutItems items = layout_items(config);
  summary.ranks.resize(static_cast<std::size_t>(config.parallelism.pipeline));
  for (int s = 0; s < config.stages(); ++s) {
    const StageBlocks& blocks = layout[s];
    StageSummary& stage = summary.stages.emplace_back();
    stage.stage = s;
    stage.rank = rank_of_stage[s];
    stage.layers = spaced_symbols(stage_symbols(blocks, config.model));
    stage.forward_flops = stage_flops(config, blocks);
    stage.cost = stage_cost(items, blocks);
    const PlannedStage planned =
        plan_stage(config, mesh, mesh.coordinates(mesh.rank_at(stage.rank, 0, 0, 0, 0)), s, layout);
    count_parameters(config, planned, stage);
    const BucketBytes bytes = static_bytes({&planned, 1});
    stage.parameter_bytes = bytes[Bucket::sharded_parameters] + bytes[Bucket::replicated_parameters];
    stage.gradient_bytes = bytes[Bucket::sharded_gradients];
    stage.optimizer_bytes = bytes[Bucket::optimizer_state];

    RankSummary& rank = summary.ranks[stage.rank];
    rank.rank = stage.rank;
    stage.chunk = static_cast<int>(rank.stages.size());
    rank.stages.push_back(s);
    summary.chunks = std::max(summary.chunks, stage.chunk + 1);
    rank.add(stage);
  }
  compare_loads(summary.stages);
  compare_loads(summary.ranks);
  return summary;
}

}  // namespace weft
