#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "parallel/shard/replicated.h"
#include "trainer/costs/cost_table.h"
#include "trainer/costs/step_flops.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

double resident_bytes(const PlannedUnit& unit) {
  BucketBytes bytes;
  add_static_bytes(unit, bytes);
  if (unit.plan.replicated()) return static_cast<double>(bytes.total());
  const UnitBytes own = unit_bytes(unit.setup());
  return static_cast<double>(bytes.total() + own.unsharded_parameters + own.unsharded_gradients);
}

// Adds the part of resident_bytes that every timing needs. Gradients that are reduced once a step stay.
void add_least_bytes(const PlannedUnit& unit, LayoutItem& item) {
  if (unit.plan.replicated()) {
    const std::int64_t whole = ReplicatedParameters::bytes(unit.plan.parameters);
    // Parameters, their gradient, and the accumulator of the gradient.
    item.always_bytes += static_cast<double>(unit.optimizer_state_bytes + whole * (unit.frozen ? 1 : 3));
    return;
  }
  const UnitBytes own = unit_bytes(unit.setup());
  const std::int64_t gradients = unit.frozen ? 0 : own.unsharded_gradients + own.reduce_input + own.reduce_part;
  const bool stay = unit.policy.reduce_every == 0;
  item.always_bytes += static_cast<double>(unit.optimizer_state_bytes + own.sharded_parameters + own.sharded_gradients +
                                           (stay ? gradients : 0));
  item.passing_bytes += static_cast<double>(own.unsharded_parameters + (stay ? 0 : gradients));
}

PlannedStage whole_model(const Config& config, const Mesh& mesh) {
  return plan_stage(config, mesh, mesh.coordinates(0), 0, {all_blocks(config.model)});
}

bool parts_backwards(const Config& config) {
  return std::ranges::any_of(compute_order(config), [](const std::vector<Action>& actions) {
    return std::ranges::find(actions, Op::backward_weight, &Action::op) != actions.end();
  });
}

// Microbatches that a rank keeps at its fullest instants, as in ScheduleResidents::kept, from its compute actions and
// its stages in ascending order. A microbatch is kept from its forward to the end of its backward, or of its weight
// gradient if that is a separate action.
std::vector<std::vector<int>> kept_microbatches(const std::vector<Action>& actions, const std::vector<int>& stages) {
  std::vector<int> kept(stages.size(), 0);
  std::set<std::vector<int>> instants;  // each before a microbatch is released
  bool grew = false;
  const auto note = [&] {
    if (std::exchange(grew, false)) instants.insert(kept);
  };
  for (const Action& action : actions) {
    const auto chunk = std::ranges::find(stages, *action.stage) - stages.begin();
    int& own = kept[chunk];
    if (action.op == Op::forward) {
      ++own;
      grew = true;
    } else if (makes_weight_gradient(action.op)) {
      note();
      --own;
    }
  }
  note();
  std::vector<std::vector<int>> fullest;
  for (const std::vector<int>& instant : instants) {
    // Another instant keeps at least as many microbatches on every stage.
    const bool covered = std::ranges::any_of(instants, [&](const std::vector<int>& other) {
      return other != instant && std::ranges::equal(instant, other, std::ranges::less_equal());
    });
    if (!covered) fullest.push_back(instant);
  }
  return fullest;
}

// The pieces of the sample: embedding, a block of each kind, and the head with the predictors, which stand on its
// stage. Without costs.
std::vector<LayoutItem> sampled_pieces(const Config& config, const Config& sample) {
  const Mesh mesh(sample.parallelism);
  const PlannedStage planned = whole_model(sample, mesh);

  // Tensors for a weight gradient are kept for many microbatches if it is computed apart from the input gradient.
  // Otherwise they are kept only for the microbatch that is computed.
  const bool waits = config.memory_budget && parts_backwards(config);

  const auto kept_bytes = kept_by_segments(sample, plan_inputs(sample, mesh.coordinates(0)).boundary, planned);

  const auto kinds = static_cast<std::size_t>(sample.model.layers());
  std::vector<LayoutItem> pieces(kinds + 2);
  // By parameter; a tied weight belongs to embedding and head, and predictors use both.
  std::map<std::string_view, std::set<std::size_t>> pieces_of;
  for (std::size_t s = 0; s < planned.segments.size(); ++s) {
    const Segment& segment = *planned.segments[s];
    const ModelPart part = segment.part();
    const std::size_t place = part.block                         ? std::min<std::size_t>(*part.block, kinds) + 1
                              : part.kind == PartKind::embedding ? 0
                                                                 : pieces.size() - 1;
    LayoutItem& piece = pieces[place];
    const std::int64_t kept = kept_bytes[s].bytes;
    piece.activation_bytes += static_cast<double>(kept);
    // One block of one microbatch is recomputed at a time.
    const std::int64_t again = segment.activation_bytes() - kept;
    const std::int64_t more = std::max(std::int64_t{0}, segment.pending_bytes() - segment.activation_bytes());
    const std::int64_t pending = std::max(std::int64_t{0}, segment.pending_bytes() - kept);
    // Bytes that wait in host memory are on the device for one microbatch at a time.
    const double away = config.training.offload * static_cast<double>(kept_bytes[s].may_leave);
    piece.kept_bytes += static_cast<double>(kept + (waits ? pending : 0)) - away;
    piece.passing_bytes += static_cast<double>(waits ? again : again + more) + away;
    for (const ParameterSpec& parameter : segment.parameters()) pieces_of[parameter.name].insert(place);
  }
  for (const PlannedUnit& unit : planned.units) {
    for (const std::size_t piece : pieces_of.at(unit.plan.parameters.front().name)) {
      pieces[piece].resident_bytes += resident_bytes(unit);
      add_least_bytes(unit, pieces[piece]);
    }
  }

  return pieces;
}

}  // namespace

Config one_of_each(const Config& config) {
  Config sample = config;
  sample.parallelism.pipeline = 1;
  sample.pipeline = {};
  sample.training.recompute_every = 1;
  sample.training.recompute_last_block = true;
  std::vector<ModelBlock> kinds;
  for (const ModelBlock& block : config.model.blocks) {
    if (std::ranges::find(kinds, block) == kinds.end()) kinds.push_back(block);
  }
  kinds.insert(kinds.end(), config.model.blocks.end() - config.model.mtp_depth, config.model.blocks.end());
  sample.model.blocks = std::move(kinds);
  for (auto& [family, policy] : sample.shard_by_family) policy.residency_by_stage.clear();
  return sample;
}

LayoutItems modelled_items(const Config& config) {
  const ModelConfig& model = config.model;
  Config sample = one_of_each(config);
  for (auto& [family, policy] : sample.shard_by_family) policy.wrap = {};  // each block in units of its own
  const std::vector<LayoutItem> pieces = sampled_pieces(config, sample);
  // Of blocks that are not recomputed where others are.
  const bool spares = recomputes_blocks(config.training.recompute) && config.training.spares_blocks();
  Config unrepeated = sample;
  unrepeated.training.recompute = Recompute::none;
  const std::vector<LayoutItem> spared_pieces = spares ? sampled_pieces(config, unrepeated) : pieces;
  const auto is_spared = [&](int block) { return spares && !config.recomputes(block); };
  const auto cost_of = [&](int block) {
    TokenFlops flops = block_token_flops(model, model.blocks[block], config.training.sequence_length);
    flops.routed_experts *= config.expert_rows_per_choice();
    // A backward costs twice the forward.
    return flops.total() + (is_spared(block) ? 0.0 : repeated_flops(flops, config.training) / 3.0);
  };

  LayoutItems items;
  items.embedding = pieces.front();
  for (int block = 0; block < model.layers(); ++block) {
    const auto kind = std::ranges::find(sample.model.blocks, model.blocks[block]);
    const auto place = static_cast<std::size_t>(kind - sample.model.blocks.begin()) + 1;
    items.blocks.push_back((is_spared(block) ? spared_pieces : pieces)[place]);
    items.blocks.back().cost = cost_of(block);
  }
  bool spares_predictor = false;
  double cost = head_flops(model);
  for (int block = model.layers(); block < std::ssize(model.blocks); ++block) {
    spares_predictor = spares_predictor || is_spared(block);
    cost += cost_of(block) + merge_flops(model) + head_flops(model);
  }
  items.head = (spares_predictor ? spared_pieces : pieces).back();
  items.head.cost = cost;
  return items;
}

LayoutItems layout_items(const Config& config) {
  LayoutItems items = modelled_items(config);
  if (!config.pipeline.has_cost_table()) return items;
  // All segments on one stage: a table names segments, on whichever stage they stand.
  Config whole = config;
  whole.parallelism.pipeline = 1;
  whole.pipeline = {};
  whole.pipeline.costs = config.pipeline.costs;
  for (auto& [family, policy] : whole.shard_by_family) policy.residency_by_stage.clear();
  const Mesh mesh(whole.parallelism);
  const ProgramTables tables = stage_tables(whole, plan_inputs(whole, mesh.coordinates(0)).boundary,
                                            [&](int) { return whole_model(whole, mesh); });
  const std::vector<ComputeCost> costs = segment_costs(configured_cost_table(whole.pipeline.costs), tables.segments);
  const bool recomputes = recomputes_blocks(config.training.recompute);
  const auto seconds = [&](std::size_t segment) {
    const ComputeCost& cost = costs[segment];
    return cost.forward + cost.backward_input + cost.backward_weight;
  };
  for (LayoutItem* item : {&items.embedding, &items.head}) item->cost = 0.0;
  for (LayoutItem& item : items.blocks) item.cost = 0.0;
  for (std::size_t s = 0; s < tables.segments.size(); ++s) {
    const ProgramSegment& segment = tables.segments[s];
    const bool in_block = segment.part.block.value_or(config.model.layers()) < config.model.layers();
    LayoutItem& item = in_block                                   ? items.blocks[*segment.part.block]
                       : segment.part.kind == PartKind::embedding ? items.embedding
                                                                  : items.head;
    item.cost += seconds(s) + (recomputes && segment.region ? costs[s].recompute() : 0.0);
  }
  return items;
}

ScheduleResidents schedule_residents(const Config& config) {
  ScheduleResidents ranks;
  ranks.rank_of_stage = stage_ranks(config);
  if (config.stages() == config.parallelism.pipeline && !config.memory_budget) {
    ranks.kept.resize(ranks.rank_of_stage.size());
    const ScheduleResidents usual = one_stage_each(config.stages(), static_cast<int>(config.microbatches()));
    for (std::size_t stage = 0; stage < usual.kept.size(); ++stage)
      ranks.kept[ranks.rank_of_stage[stage]] = usual.kept[stage];
    return ranks;
  }
  const std::vector<std::vector<Action>> order = compute_order(config);
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    ranks.kept.push_back(kept_microbatches(order[rank], stages_of_rank(config, static_cast<int>(rank))));
  return ranks;
}

}  // namespace weft
