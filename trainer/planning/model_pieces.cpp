#include "trainer/planning/model_pieces.h"

#include <algorithm>
#include <utility>

#include "parallel/mesh/mesh.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// The pieces as stages of an artificial pipeline: embedding, head, both, one block of each kind and width, and the
// predictors.
struct Sample {
  Config config;
  std::vector<StageBlocks> stages;
  std::vector<ModelBlock> kinds;  // of the stages after the first three
};

Sample sample_of(const Config& config) {
  Sample sample{.config = one_of_each(config),
                .stages = {{.embedding = true}, {.head = true}, {.embedding = true, .head = true}},
                .kinds = {}};
  // All that may wait in host memory, so that the kept bytes stay a lower bound whichever segments a stage chooses.
  if (config.training.offload > 0.0) sample.config.training.offload = 1.0;
  const ModelConfig& model = sample.config.model;
  sample.kinds.assign(model.blocks.begin(), model.blocks.end() - model.mtp_depth);
  for (int i = 0; i < model.layers(); ++i) sample.stages.push_back({.first = i, .count = 1});
  if (model.mtp_depth > 0) sample.stages.push_back({.first = model.layers(), .count = model.mtp_depth});
  sample.config.parallelism.pipeline = static_cast<int>(sample.stages.size());
  return sample;
}

// Predictors may share units with the head.
bool is_separable(const Config& config) {
  return config.model.mtp_depth == 0 && !config.training.spares_blocks() &&
         std::ranges::all_of(config.shard_by_family, [](const auto& entry) {
           const WrapKind kind = entry.second.wrap.kind;
           return kind == WrapKind::block || kind == WrapKind::half_block;
         });
}

// Counts only bytes that do not depend on routing.
void add_kept(const Config& config, const ProgramSegment& segment, ModelPiece& piece) {
  const bool routed = segment.part.kind == PartKind::experts;
  const bool counts = !routed || (segment.region && config.training.recompute == Recompute::full);
  const std::int64_t behind_forward = counts ? forward_bytes(segment) - segment.offload_bytes : 0;
  piece.kept_bytes += behind_forward;
  piece.kept_parted_bytes += routed ? 0 : std::min(behind_forward, segment.pending_bytes);
}

void add_unit(const ProgramUnit& unit, const UnitCost& cost, const UnitCost& on_adapters, ModelPiece& piece) {
  // One unit of a stage, which a bound leaves out.
  if (unit.replicated && !is_replicated(unit.family)) return;
  PieceUnits& units = piece.units[unit.family];
  units.seconds.reductions += unit.frozen ? 0.0 : cost.reduce;
  if (unit.replicated) return;
  units.on_adapters.reductions += unit.frozen ? 0.0 : on_adapters.reduce;
  if (unit.unsharded_bytes > 0) {
    units.seconds.gathers += cost.gather;
    units.on_adapters.gathers += on_adapters.gather;
  }
  units.unsharded_bytes += unit.unsharded_bytes;
  units.gradient_bytes += unit.frozen ? 0 : unit.gradient_bytes;
}

}  // namespace

ModelPieces model_pieces(const Config& config, const Hardware& hardware) {
  const Sample sample = sample_of(config);
  const Mesh mesh(config.parallelism);
  const Coordinates at = mesh.coordinates(0);
  std::vector<std::int64_t> static_by_stage;
  const ProgramTables tables = stage_tables(sample.config, plan_inputs(sample.config, at).boundary, [&](int stage) {
    const StageBlocks& blocks = sample.stages[static_cast<std::size_t>(stage)];
    // No piece shares a weight with another, of which both would then have copies in units of their own.
    std::vector<StageBlocks> alone(sample.stages.size());
    alone[static_cast<std::size_t>(stage)] = blocks;
    PlannedStage planned = plan_stage(sample.config, mesh, stage, alone,
                                      make_segments(sample.config, segment_setup(sample.config, at), stage, blocks));
    static_by_stage.push_back(static_bytes({&planned, 1}).total());
    return planned;
  });
  HardwareCosts on_hardware = hardware_costs(hardware, config, mesh);
  const std::vector<int> node_of_rank = on_hardware.nodes;
  // The sample may have more stages than the mesh has pipeline ranks; the cost of its messages is not used.
  on_hardware.nodes.resize(std::max(on_hardware.nodes.size(), sample.stages.size()));
  // A table of costs has seconds of its own for the parts of a stage; pieces then bound no time.
  const bool modelled = !config.pipeline.has_cost_table();
  const ProgramCosts costs =
      modelled ? modelled_costs(tables, timed_flops(sample.config, tables, hardware), on_hardware, group_sizes(mesh))
               : even_costs(tables, {});
  std::vector<ModelPiece> pieces(sample.stages.size());
  for (std::size_t s = 0; s < pieces.size(); ++s) pieces[s].static_bytes = static_by_stage[s];
  for (std::size_t i = 0; i < tables.segments.size(); ++i) {
    const ProgramSegment& segment = tables.segments[i];
    ModelPiece& piece = pieces[static_cast<std::size_t>(segment.stage)];
    add_kept(config, segment, piece);
    piece.forward += costs.segments[i].forward;
    piece.backward_input += costs.segments[i].backward_input;
    piece.backward_weight += costs.segments[i].backward_weight;
    const ComputeCost& cost = costs.segments[i];
    const double again = segment.region && !config.training.spares_blocks() ? cost.recompute() : 0.0;
    piece.again += again;
    if (costs.have_adapters()) {
      const ComputeCost& busy = costs.on_adapters.segments[i];
      piece.on_adapters += busy.forward + busy.backward_input + busy.backward_weight;
      if (segment.region && !config.training.spares_blocks()) piece.on_adapters += busy.recompute();
    }
    const double forward_rows = cost.forward_out - cost.forward_covered + cost.forward_back;
    piece.forward_rows += forward_rows;
    piece.rows += forward_rows + std::min(again, forward_rows);
    piece.rows += cost.backward_out - cost.backward_covered + cost.backward_back;
  }
  for (std::size_t u = 0; u < tables.units.size(); ++u) {
    const UnitCost busy = costs.have_adapters() ? costs.on_adapters.units[u] : UnitCost{};
    add_unit(tables.units[u], costs.units[u], busy, pieces[static_cast<std::size_t>(tables.units[u].stage)]);
  }
  ModelPieces result{.embedding = pieces[0], .head = pieces[1], .both = pieces[2], .blocks = {}, .predictors = {}};
  result.node_of_rank = node_of_rank;
  if (modelled && config.parallelism.pipeline > 1) {
    result.message = link_seconds(on_hardware.links.at(Group::pp), CollectiveOp::send,
                                  static_cast<double>(tables.stages.front().output_bytes), 2);
  }
  if (config.model.mtp_depth > 0) {
    result.predictors = pieces.back();
    result.predictors.units.clear();
  }
  for (std::size_t k = 0; k < sample.kinds.size(); ++k) result.blocks[sample.kinds[k]] = pieces[3 + k];
  result.separable = is_separable(config);
  return result;
}

}  // namespace weft
