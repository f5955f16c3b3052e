#include "trainer/resolve/step_costs.h"

#include "parallel/runtime/error.h"
#include "trainer/costs/cost_table.h"
#include "trainer/costs/hardware.h"
#include "trainer/costs/step_flops.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/optimizer/update_plan.h"

namespace weft {
namespace {

TokenFlops part_token_flops(const Config& config, const ModelPart& part) {
  if (part.kind == PartKind::head || part.kind == PartKind::predict) return {.head = head_flops(config.model)};
  if (part.kind == PartKind::merge) return {.merges = merge_flops(config.model)};
  if (!part.block) return {};
  const ModelBlock& block = config.model.blocks.at(static_cast<std::size_t>(*part.block));
  TokenFlops flops = block_token_flops(config.model, block, config.training.sequence_length);
  if (part.kind == PartKind::attention || part.kind == PartKind::state_space) {
    return {.mixer_projections = flops.mixer_projections, .scores = flops.scores};
  }
  flops.mixer_projections = flops.scores = 0.0;
  return flops;
}

// `dense_weight`, `expert_weight`: of an operation in the products of a family; less than one if they are faster than
// those of 16 bits.
std::vector<SegmentFlops> flops_of_segments(const Config& config, const ProgramTables& tables, double dense_weight,
                                            double expert_weight, bool lanes_overlap) {
  const double tokens =
      static_cast<double>(config.microbatch_tokens()) / (config.parallelism.context * config.parallelism.tensor);
  std::vector<SegmentFlops> flops;
  for (const ProgramSegment& segment : tables.segments) {
    TokenFlops token = part_token_flops(config, segment.part);
    for (double* part : {&token.mixer_projections, &token.dense_mlp, &token.shared_experts}) *part *= dense_weight;
    token.routed_experts *= expert_weight;
    token.routed_experts *= config.expert_rows_per_choice();
    const double products = token.total() - token.scores;
    bool trains = false;
    for (int unit : segment.units) trains = trains || !tables.units[static_cast<std::size_t>(unit)].frozen;
    const double forward = products + token.scores;
    const double repeated =
        segment.region || !recomputes_blocks(config.training.recompute) ? repeated_flops(token, config.training) : 0.0;
    // The repeated work of a recomputed block is an action of its own; embedding and head repeat nothing.
    const double inside = segment.region ? 0.0 : repeated;
    const double spared = segment.region ? forward - repeated : 0.0;
    flops.push_back({tokens * forward, tokens * (products + 2.0 * token.scores + inside),
                     trains ? tokens * products : 0.0, tokens * spared,
                     lanes_overlap ? tokens * token.shared_experts : 0.0});
  }
  return flops;
}

}  // namespace

ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at) {
  return program_tables(config, mesh, at, stage_layout(config));
}

ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at,
                             const std::vector<StageBlocks>& layout) {
  ProgramTables tables = stage_tables(config, plan_inputs(config, at).boundary,
                                      [&](int stage) { return plan_stage(config, mesh, at, stage, layout); });
  tables.reduce_inputs = config.reduce_inputs;
  tables.update = update_collectives(config, mesh, at);
  if (config.state_offload > 0.0) tables.update_host_bytes = host_state_bytes(plan_stages(config, mesh, at, layout));
  return tables;
}

std::vector<SegmentFlops> timed_flops(const Config& config, const ProgramTables& tables, const Hardware& hardware) {
  const double peak = hardware.flops_per_second(config.precision_of(Family::dense).compute).value;
  const auto weight = [&](Family family) {
    const ProductFormat format = product_format(config, family);
    if (format == ProductFormat::as_stored) return 1.0;
    return peak / hardware.flops_per_second(format).value;
  };
  std::vector<SegmentFlops> flops = flops_of_segments(config, tables, weight(Family::dense), weight(Family::experts),
                                                      /*lanes_overlap=*/hardware.name != "cpu");
  const std::optional<double> bytes_per_second = hardware.moved_bytes_per_second();
  if (!bytes_per_second) return flops;
  // Operations that the cost model takes for as long as rounding takes for a byte.
  const double rounding = hardware.reached.value * peak / *bytes_per_second;
  for (std::size_t i = 0; i < flops.size(); ++i) {
    const RoundedBytes rounded = rounded_bytes(config, tables.segments[i].part);
    flops[i].forward += rounding * rounded.forward;
    flops[i].backward_input += rounding * rounded.backward_input;
    if (flops[i].backward_weight > 0.0) flops[i].backward_weight += rounding * rounded.backward_weight;
  }
  return flops;
}

ProgramCosts modelled_costs(const Config& config, const Mesh& mesh, const ProgramTables& tables,
                            const Hardware& hardware) {
  return modelled_costs(tables, timed_flops(config, tables, hardware), hardware_costs(hardware, config, mesh),
                        group_sizes(mesh));
}

ProgramCosts step_costs(const Config& config, const Mesh& mesh, const ProgramTables& tables, const Hardware& hardware) {
  if (!config.pipeline.has_cost_table()) return modelled_costs(config, mesh, tables, hardware);
  ProgramCosts costs = table_costs(configured_cost_table(config.pipeline.costs), tables, group_sizes(mesh));
  time_host_copies(tables, hardware, costs);
  return costs;
}

void time_host_copies(const ProgramTables& tables, const Hardware& hardware, ProgramCosts& costs) {
  for (std::size_t i = 0; i < tables.segments.size(); ++i) {
    double& seconds = costs.segments[i].host_copy;
    const auto bytes = static_cast<double>(tables.segments[i].offload_bytes);
    if (seconds == 0.0) seconds = bytes / hardware.host_bytes_per_second.value;
  }
}

LaneChannels lane_channels(const Config& config) {
  return config.run.device == DeviceKind::cpu ? LaneChannels::serial() : LaneChannels::own();
}

}  // namespace weft
