#include "trainer/planning/search_bounds.h"

#include <algorithm>
#include <iterator>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// A bound sums in another order than the simulator, so rounding may differ.
constexpr double rounding = 1.0 - 1e-9;

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

void add_unit(const ProgramUnit& unit, const UnitCost& cost, ModelPiece& piece) {
  // One unit of a stage, which a bound leaves out.
  if (unit.replicated && !is_replicated(unit.family)) return;
  PieceUnits& units = piece.units[unit.family];
  units.reduce += unit.frozen ? 0.0 : cost.reduce;
  if (unit.replicated) return;
  units.gather += unit.unsharded_bytes > 0 ? cost.gather : 0.0;
  units.unsharded_bytes += unit.unsharded_bytes;
  units.gradient_bytes += unit.frozen ? 0 : unit.gradient_bytes;
}

const ModelPiece& piece_of(const ModelPieces& pieces, const Config& config, int block) {
  return pieces.blocks.at(config.model.blocks[static_cast<std::size_t>(block)]);
}

// The pieces of a stage, in forward order.
std::vector<const ModelPiece*> pieces_of(const ModelPieces& pieces, const Config& config, const StageBlocks& stage) {
  std::vector<const ModelPiece*> list;
  const bool tied = config.model.tie_word_embeddings && stage.embedding && stage.head;
  if (stage.embedding) list.push_back(tied ? &pieces.both : &pieces.embedding);
  for (int block = stage.first; block < stage.first + stage.count; ++block) {
    if (block < config.model.layers()) list.push_back(&piece_of(pieces, config, block));
  }
  if (stage.predicts(config.model)) list.push_back(&pieces.predictors);
  if (stage.head && !tied) list.push_back(&pieces.head);
  return list;
}

// Least seconds of the unit collectives of a step, one after the other on their lanes.
struct UnitSeconds {
  double gathers = 0.0, reductions = 0.0;
};

double reductions_of(const UnitPolicy& policy, std::int64_t microbatches) {
  const bool every = policy.reduce_every > 0 && policy.residency != Residency::solved;
  return every ? static_cast<double>((microbatches + policy.reduce_every - 1) / policy.reduce_every) : 1.0;
}

struct StageSums {
  ModelPiece sum;               // without `units`
  double alike = 0.0;           // the part of `again` that waits for the gradient to arrive: all blocks except the last
  UnitSeconds units;            // per step
  std::int64_t gradients = 0;   // accumulated unsharded until the last microbatch
  std::int64_t parameters = 0;  // kept from the first use to the last
};

StageSums sums_of(const Config& config, const ModelPieces& pieces, const StageBlocks& blocks, int stage) {
  StageSums sums;
  const std::int64_t microbatches = config.microbatches();
  std::map<Family, double> all, most;  // seconds of one gather of blocks' units: sum, and largest
  double last_again = 0.0, routing = 0.0;
  for (const ModelPiece* piece : pieces_of(pieces, config, blocks)) {
    ModelPiece& sum = sums.sum;
    sum.static_bytes += piece->static_bytes;
    sum.kept_bytes += piece->kept_bytes;
    sum.kept_parted_bytes += piece->kept_parted_bytes;
    sum.forward += piece->forward;
    sum.backward_input += piece->backward_input;
    sum.backward_weight += piece->backward_weight;
    sum.again += piece->again;
    sum.forward_rows += piece->forward_rows;
    sum.rows += piece->rows;
    if (piece->again > 0.0) last_again = piece->again;
    const bool is_block = piece != &pieces.embedding && piece != &pieces.head && piece != &pieces.both;
    for (const auto& [family, units] : piece->units) {
      const UnitPolicy policy = resolve_policy(config, family, stage);
      const double reductions = units.reduce * reductions_of(policy, microbatches);
      // The routing helpers of a stage are one unit; it takes at least as long as those of any block.
      if (is_replicated(family)) {
        routing = std::max(routing, reductions);
        continue;
      }
      sums.units.reductions += reductions;
      if (policy.residency == Residency::reshard_after_use && is_block) {
        all[family] += units.gather;
        most[family] = std::max(most[family], units.gather);
      } else {
        sums.units.gathers += units.gather;
      }
      // The backward of the embedding does not read the unit.
      const bool read_last = piece != &pieces.embedding;
      if (policy.residency == Residency::step && read_last) sums.parameters += units.unsharded_bytes;
      if (policy.reduce_every == 0 && !policy.accumulate_sharded && policy.residency != Residency::solved) {
        sums.gradients += units.gradient_bytes;
      }
    }
  }
  // Every forward and every backward uses all blocks. Between a forward and the next backward, the block at the turn is
  // not resharded, so each of them gathers all blocks except one.
  for (const auto& [family, seconds] : all) {
    const double turns = 2.0 * static_cast<double>(microbatches) * (seconds - most[family]);
    sums.units.gathers += std::max(turns, seconds);
  }
  sums.units.reductions += routing;
  sums.alike = sums.sum.again - last_again;
  return sums;
}

// The largest total of bytes that one rank keeps, over the positions after each action of its list.
std::int64_t most_kept(const std::vector<Action>& actions, const std::vector<StageSums>& stages, std::int64_t count) {
  struct Held {
    std::int64_t uses = 0, all_uses = 0, ended = 0;
  };
  std::vector<Held> held(stages.size());
  for (const Action& action : actions) {
    if (reads_parameters(action.op)) ++held[static_cast<std::size_t>(*action.stage)].all_uses;
  }
  const bool parted = std::ranges::any_of(actions, [](const Action& each) { return each.op == Op::backward_input; });
  std::int64_t now = 0, most = 0;
  for (const Action& action : actions) {
    const auto at = static_cast<std::size_t>(*action.stage);
    Held& stage = held[at];
    const StageSums& sums = stages[at];
    const std::int64_t kept = parted ? sums.sum.kept_parted_bytes : sums.sum.kept_bytes;
    if (reads_parameters(action.op)) {
      if (stage.uses++ == 0) now += sums.parameters;
      if (stage.uses == stage.all_uses) now -= sums.parameters;
    }
    if (action.op == Op::forward) now += kept;
    if (makes_weight_gradient(action.op)) {
      now -= kept;
      // The first weight gradient creates all accumulators of the stage; after the last one they can be reduced.
      if (++stage.ended == 1 && count > 1) now += sums.gradients;
      if (stage.ended == count && count > 1) now -= sums.gradients;
    }
    most = std::max(most, now);
  }
  return most;
}

// The time of the order of stages, each stage with its own time and no gaps.
double seconds_of_order(const Program& order, const std::vector<StageSums>& stages) {
  ProgramCosts costs = even_costs(order, {});
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const ModelPiece& sum = stages[s].sum;
    costs.stages[s] = {sum.forward, sum.backward_input + stages[s].alike, sum.backward_weight};
  }
  return simulate(order, costs).seconds;
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
  // The sample may have more stages than the mesh has pipeline ranks; the cost of its messages is not used.
  on_hardware.nodes.resize(std::max(on_hardware.nodes.size(), sample.stages.size()));
  const ProgramCosts costs =
      modelled_costs(tables, timed_flops(sample.config, tables, hardware), on_hardware, group_sizes(mesh));
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
    const double forward_rows = cost.forward_out - cost.forward_covered + cost.forward_back;
    piece.forward_rows += forward_rows;
    piece.rows += forward_rows + std::min(again, forward_rows);
    piece.rows += cost.backward_out - cost.backward_covered + cost.backward_back;
  }
  for (std::size_t u = 0; u < tables.units.size(); ++u) {
    add_unit(tables.units[u], costs.units[u], pieces[static_cast<std::size_t>(tables.units[u].stage)]);
  }
  ModelPieces result{.embedding = pieces[0], .head = pieces[1], .both = pieces[2], .blocks = {}, .predictors = {}};
  if (config.model.mtp_depth > 0) {
    result.predictors = pieces.back();
    result.predictors.units.clear();
  }
  for (std::size_t k = 0; k < sample.kinds.size(); ++k) result.blocks[sample.kinds[k]] = pieces[3 + k];
  result.separable = is_separable(config);
  return result;
}

LeastTaken least_of_any_layout(const Config& config, const ModelPieces& pieces) {
  const double ranks = config.parallelism.pipeline;
  const auto microbatches = static_cast<double>(config.microbatches());
  const bool hides = config.pipeline.own_order || find_schedule(config.pipeline.schedule).overlaps;
  const auto seconds_of = [&](const ModelPiece& piece) { return piece.seconds() - (hides ? piece.rows : 0.0); };
  double seconds = pieces.embedding.seconds() + pieces.head.seconds();
  // Tied weights are held at least once.
  std::int64_t bytes = config.model.tie_word_embeddings ? pieces.both.static_bytes
                                                        : pieces.embedding.static_bytes + pieces.head.static_bytes;
  seconds += seconds_of(pieces.predictors);
  for (const ModelBlock& block :
       std::span(config.model.blocks).first(static_cast<std::size_t>(config.model.layers()))) {
    seconds += seconds_of(pieces.blocks.at(block));
    bytes += pieces.blocks.at(block).static_bytes;
  }
  LeastTaken least{.seconds = rounding * microbatches * seconds / ranks};
  if (pieces.separable) {
    least.static_bytes = least.bytes = static_cast<std::int64_t>(static_cast<double>(bytes) / ranks);
  }
  return least;
}

LeastTaken least_taken(const Config& config, const ModelPieces& pieces) {
  const std::vector<StageBlocks> layout = stage_layout(config);
  const Program program = schedule_only_step(config);
  const std::vector<std::vector<Action>>& order = program.ranks;
  std::vector<StageSums> stages;
  for (std::size_t s = 0; s < layout.size(); ++s) {
    stages.push_back(sums_of(config, pieces, layout[s], static_cast<int>(s)));
  }
  const bool serial = config.run.device == DeviceKind::cpu;
  const auto microbatches = static_cast<double>(config.microbatches());
  LeastTaken least;
  const bool overlaps =
      std::ranges::any_of(order, [](const auto& actions) { return !find_overlaps(actions).pairs.empty(); });
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    double compute = 0.0, before = 0.0;
    UnitSeconds units;
    std::int64_t bytes = 0;
    bool reached = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (program.stages[s].rank != static_cast<int>(rank)) {
        if (!reached) before += stages[s].sum.forward - (overlaps ? stages[s].sum.forward_rows : 0.0);
        continue;
      }
      reached = true;
      compute += microbatches * (stages[s].sum.seconds() - (overlaps ? stages[s].sum.rows : 0.0));
      units.gathers += stages[s].units.gathers;
      units.reductions += stages[s].units.reductions;
      bytes += stages[s].sum.static_bytes;
    }
    const double longest = serial ? before + compute + units.gathers + units.reductions
                                  : std::max({before + compute, units.gathers, units.reductions});
    least.seconds = std::max(least.seconds, longest);
    if (!pieces.separable) continue;
    least.static_bytes = std::max(least.static_bytes, bytes);
    least.bytes = std::max(least.bytes, bytes + most_kept(order[rank], stages, config.microbatches()));
  }
  // Two overlapped stages hand on only when both are done. Their segments wait less, so this bound would be too large.
  if (!overlaps && order.size() > 1) least.seconds = std::max(least.seconds, seconds_of_order(program, stages));
  least.seconds *= rounding;
  return least;
}

}  // namespace weft
