#include "trainer/planning/model_pieces.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "parallel/mesh/mesh.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
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

// Without bytes that wait in host memory.
ModelPiece kept_by(const Config& config, const PlannedBoundary& boundary, const PlannedStage& stage) {
  ModelPiece piece;
  const std::vector<KeptBySegment> kept = kept_by_segments(config, boundary, stage);
  for (std::size_t s = 0; s < kept.size(); ++s) {
    const std::int64_t behind_forward = kept[s].even - (config.training.offload > 0.0 ? kept[s].may_leave : 0);
    piece.kept_bytes += behind_forward;
    piece.kept_parted_bytes += std::min(behind_forward, stage.segments[s]->even_bytes().pending);
  }
  return piece;
}

void add_segment(const ComputeCost& cost, const ComputeCost& on_adapters, bool runs_again, ModelPiece& piece) {
  const double again = runs_again ? cost.recompute() : 0.0;
  piece.forward += cost.forward;
  piece.backward_input += cost.backward_input;
  piece.backward_weight += cost.backward_weight;
  piece.again += again;
  piece.on_adapters += on_adapters.forward + on_adapters.backward_input + on_adapters.backward_weight +
                       (runs_again ? on_adapters.recompute() : 0.0);
  const double forward_rows = cost.forward_out - cost.forward_covered + cost.forward_back;
  piece.forward_rows += forward_rows;
  piece.rows += forward_rows + std::min(again, forward_rows);
  piece.rows += cost.backward_out - cost.backward_covered + cost.backward_back;
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

// Of the sample's stages. Tables have either segments or units.
struct KnownPieces::Segments {
  ProgramTables tables;
  std::vector<SegmentFlops> flops;
  std::vector<ModelPiece> kept;
};
struct KnownPieces::Units {
  ProgramTables tables;
  std::vector<std::int64_t> static_bytes;
};

namespace {

using Tables = std::pair<std::shared_ptr<KnownPieces::Segments>, std::shared_ptr<KnownPieces::Units>>;

Tables tables_of(const Sample& sample, const Config& config, const Hardware& hardware) {
  const Mesh mesh(config.parallelism);
  const Coordinates at = mesh.coordinates(0);
  const PlannedBoundary boundary = plan_inputs(sample.config, at).boundary;
  auto segments = std::make_shared<KnownPieces::Segments>();
  auto units = std::make_shared<KnownPieces::Units>();
  segments->tables = stage_tables(sample.config, boundary, [&](int stage) {
    const StageBlocks& blocks = sample.stages[static_cast<std::size_t>(stage)];
    // No piece shares a weight with another, of which both would then have copies in units of their own.
    std::vector<StageBlocks> alone(sample.stages.size());
    alone[static_cast<std::size_t>(stage)] = blocks;
    PlannedStage planned = plan_stage(sample.config, mesh, stage, alone,
                                      make_segments(sample.config, segment_setup(sample.config, at), stage, blocks));
    segments->kept.push_back(kept_by(sample.config, boundary, planned));
    units->static_bytes.push_back(static_bytes({&planned, 1}).total());
    return planned;
  });
  if (!config.pipeline.has_cost_table()) segments->flops = timed_flops(sample.config, segments->tables, hardware);
  units->tables.stages = segments->tables.stages;
  units->tables.units = std::exchange(segments->tables.units, {});
  for (ProgramStage& stage : units->tables.stages) stage.segments.clear();
  return {segments, units};
}

// All that segments depend on, and units.
std::vector<std::int64_t> segments_key(const Config& config) {
  const Degrees& mesh = config.parallelism;
  return {config.training.microbatch_size,
          static_cast<std::int64_t>(config.training.recompute),
          mesh.context,
          mesh.tensor,
          mesh.expert,
          mesh.expert_tensor,
          mesh.expert_relay(),
          static_cast<std::int64_t>(mesh.expert_dispatch)};
}
std::pair<std::string, std::vector<std::int64_t>> units_key(const Config& config, const std::string& policy) {
  const Degrees& mesh = config.parallelism;
  const bool by_replicas = std::ranges::any_of(
      config.shard_by_family, [](const auto& entry) { return entry.second.wrap.kind == WrapKind::buckets; });
  return {policy,
          {shard_ranks(mesh, Family::dense), shard_ranks(mesh, Family::experts), mesh.context, mesh.tensor, mesh.expert,
           mesh.expert_tensor, config.microbatches() > 1, by_replicas ? mesh.data_replicate : 0}};
}

template <typename Map, typename Key>
typename Map::mapped_type found_in(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

ModelPieces KnownPieces::of(const Config& config, const std::string& policy) {
  const auto key_of_segments = segments_key(config);
  const auto key_of_units = units_key(config, policy);
  const Sample sample = sample_of(config);
  std::shared_ptr<Segments> segments;
  std::shared_ptr<Units> units;
  {
    const std::lock_guard lock(mutex_);
    segments = found_in(segments_, key_of_segments);
    units = found_in(units_, key_of_units);
  }
  if (!segments || !units) {
    std::tie(segments, units) = tables_of(sample, config, hardware_);
    const std::lock_guard lock(mutex_);
    segments_.emplace(key_of_segments, segments);
    units_.emplace(key_of_units, units);
  }
  const Mesh mesh(config.parallelism);
  HardwareCosts on_hardware = hardware_costs(hardware_, config, mesh);
  ModelPieces result{.node_of_rank = on_hardware.nodes};
  // The sample may have more stages than the mesh has pipeline ranks; the cost of its messages is not used.
  on_hardware.nodes.resize(std::max(on_hardware.nodes.size(), sample.stages.size()));
  // A table of costs has seconds of its own for the parts of a stage; pieces then bound no time.
  const bool modelled = !config.pipeline.has_cost_table();
  const GroupSizes sizes = group_sizes(mesh);
  const auto costs_of = [&](const ProgramTables& tables, std::span<const SegmentFlops> flops) {
    return modelled ? modelled_costs(tables, flops, on_hardware, sizes) : even_costs(tables, {});
  };
  const ProgramCosts costs = costs_of(segments->tables, segments->flops), of_units = costs_of(units->tables, {});
  std::vector<ModelPiece> pieces = segments->kept;
  for (std::size_t s = 0; s < pieces.size(); ++s) pieces[s].static_bytes = units->static_bytes[s];
  for (std::size_t i = 0; i < segments->tables.segments.size(); ++i) {
    const ProgramSegment& segment = segments->tables.segments[i];
    const ComputeCost busy = costs.have_adapters() ? costs.on_adapters.segments[i] : ComputeCost{};
    const bool again = segment.region && !config.training.spares_blocks();
    add_segment(costs.segments[i], busy, again, pieces[static_cast<std::size_t>(segment.stage)]);
  }
  for (std::size_t u = 0; u < units->tables.units.size(); ++u) {
    const ProgramUnit& unit = units->tables.units[u];
    const UnitCost busy = of_units.have_adapters() ? of_units.on_adapters.units[u] : UnitCost{};
    add_unit(unit, of_units.units[u], busy, pieces[static_cast<std::size_t>(unit.stage)]);
  }
  result.embedding = pieces[0];
  result.head = pieces[1];
  result.both = pieces[2];
  if (modelled && config.parallelism.pipeline > 1) {
    result.message = link_seconds(on_hardware.links.at(Group::pp), CollectiveOp::send,
                                  static_cast<double>(segments->tables.stages.front().output_bytes), 2);
  }
  if (config.model.mtp_depth > 0) {
    result.predictors = pieces.back();
    result.predictors.units.clear();
  }
  for (std::size_t k = 0; k < sample.kinds.size(); ++k) {
    const std::span blocks(config.model.blocks.begin(), static_cast<std::size_t>(config.model.layers()));
    pieces[3 + k].count = static_cast<int>(std::ranges::count(blocks, sample.kinds[k]));
    result.blocks[sample.kinds[k]] = pieces[3 + k];
  }
  result.separable = is_separable(config);
  return result;
}

}  // namespace weft
