#include "trainer/rank/rank_stages.h"

#include <algorithm>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"
#include "trainer/rank/initialize.h"

namespace weft {
namespace {

// By index in a table of the program: the entry's place among the entries of the planned stages, stage after stage.
template <typename Entry>
std::vector<std::size_t> places_on_rank(const std::vector<Entry>& entries, std::span<const PlannedStage> planned) {
  std::vector<std::size_t> places(entries.size(), 0);
  std::size_t next = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto here = [&](const PlannedStage& stage) { return stage.stage == entries[i].stage; };
    if (std::any_of(planned.begin(), planned.end(), here)) places[i] = next++;
  }
  return places;
}

}  // namespace

StepBatch parts_of(ConstTensorView text, const TextParts& parts) {
  const std::int64_t part = text.rows() / parts.count();
  std::int64_t taken = 0;
  return parts.filled<StepBatch>([&] { return text.rows_from(part * taken++, part); });
}

RankStages::RankStages(PlannedInputs inputs, std::vector<PlannedStage> planned, const ProgramTables& tables,
                       const std::optional<Initialization>& initialization, Lanes& lanes, RankGroups& groups,
                       KernelContext& kernels, MemoryLedger& host_ledger)
    : inputs_(std::move(inputs)),
      planned_(std::move(planned)),
      local_segment_(places_on_rank(tables.segments, planned_)),
      local_unit_(places_on_rank(tables.units, planned_)),
      forward_only_(tables.forward_only),
      initialization_(initialization),
      lanes_(lanes),
      groups_(groups),
      kernels_(kernels),
      reduce_inputs_(tables.reduce_inputs, lanes[Lane::compute], lanes[Lane::reduce]),
      host_activations_(lanes, kernels.ledger, host_ledger) {
  make_rotary_table();
  for (const PlannedStage& stage : planned_) {
    const std::size_t first_unit = planned_units_.size();
    for (const PlannedUnit& unit : stage.units) add_unit(unit);
    add_pieces(stage, tables, first_unit);
  }
  tied_.resize(planned_units_.size());
  const int rank = tables.stages[planned_.front().stage].rank;
  for (const ProgramUnit& unit : tables.units) {
    TiedUnits tied{{}, tied_ranks(tables, unit)};
    for (const int copy : copies_on_rank(tables, unit, rank)) tied.here.push_back(local_unit_[copy]);
    for (const std::size_t local : tied.here) tied_[local] = tied;
  }
}

void RankStages::make_rotary_table() {
  rotary_table_ = kernels_.ledger.allocate(Bucket::workspace, DType::float32, inputs_.rotary.heads.sequence_length,
                                           inputs_.rotary.heads.head_dim);
  if (initialization_) write<float>(kernels_.stream, rotary_table(inputs_.rotary, inputs_.positions), rotary_table_);
}

void RankStages::exchange_segments(PlannedInputs& inputs, std::vector<PlannedStage>& planned,
                                   const ProgramTables& tables) {
  require(boundary_.empty() && saved_.empty() && checkpoints_.empty(), "segments are exchanged between steps");
  require(planned.size() == planned_.size(), "the stages of a rank stay");
  const bool same_angles = inputs.positions == inputs_.positions;
  std::swap(inputs_, inputs);
  if (!same_angles) make_rotary_table();
  forward_only_ = tables.forward_only;
  local_segment_ = places_on_rank(tables.segments, planned_);
  pieces_.clear();
  std::size_t first_unit = 0;
  for (std::size_t s = 0; s < planned.size(); ++s) {
    PlannedStage& stage = planned_[s];
    require(planned[s].stage == stage.stage && planned[s].units.size() == stage.units.size(),
            "the units of a stage stay");
    std::swap(stage.segments, planned[s].segments);
    add_pieces(stage, tables, first_unit);
    first_unit += stage.units.size();
  }
}

void RankStages::add_unit(const PlannedUnit& unit) {
  planned_units_.push_back(&unit);
  if (unit.plan.replicated()) {
    units_.push_back(nullptr);
    replicated_.push_back(std::make_unique<ReplicatedParameters>(unit.plan.parameters, unit.frozen,
                                                                 groups_.on(Lane::reduce, Group::tokens), lanes_,
                                                                 kernels_.ledger, unit.precision.compute));
  } else {
    const bool partial = unit.layout.tensor_replicated_size() > 0;
    const int island = unit.policy.island_ranks;
    const UnitGroups unit_groups{.gather = &groups_.on(Lane::gather, unit.shard_group),
                                 .island = island > 0 ? &groups_.island({unit.shard_group, island}) : nullptr,
                                 .shard = &groups_.on(Lane::reduce, unit.shard_group),
                                 .replicate = &groups_.on(Lane::reduce, unit.replicate_group),
                                 .tensor = partial ? &groups_.on(Lane::reduce, Group::tp) : nullptr};
    units_.push_back(std::make_unique<ShardUnit>(unit.setup(), unit_groups, lanes_, reduce_inputs_, kernels_.ledger));
    replicated_.push_back(nullptr);
  }
  if (!initialization_) return;
  for (const OwnedRows& rows : owned_rows(units_.size() - 1)) initialize_rows(kernels_.stream, rows, *initialization_);
}

void RankStages::add_pieces(const PlannedStage& stage, const ProgramTables& tables, std::size_t first_unit) {
  std::map<std::string, ParameterPlace> place_of;
  for (std::size_t u = 0; u < stage.units.size(); ++u) {
    const PlannedUnit& unit = stage.units[u];
    const auto& parameters = unit.plan.replicated() ? unit.plan.parameters : unit.layout.parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) place_of[parameters[i].name] = {first_unit + u, i};
  }
  const auto is_here = [&](int other) {
    return other >= 0 && other < static_cast<int>(tables.stages.size()) &&
           tables.stages[other].rank == tables.stages[stage.stage].rank;
  };
  const std::size_t first = pieces_.size();
  for (const auto& segment : stage.segments) {
    StageSegment& piece = pieces_.emplace_back(StageSegment{
        .segment = segment.get(), .stage = stage.stage, .next_stage = stage.stage, .previous_stage = stage.stage});
    for (const ParameterSpec& parameter : segment->parameters()) piece.places.push_back(place_of.at(parameter.name));
    piece.fixed = segment->part().kind != PartKind::experts &&
                  std::ranges::all_of(segment->traffic(), [](const SegmentTraffic& each) { return each.count == 0; });
  }
  require(pieces_.size() > first, "a stage has at least one segment");
  mark_regions(stage, tables, first);
  if (is_here(stage.stage + 1)) pieces_.back().next_stage = stage.stage + 1;
  if (is_here(stage.stage - 1)) pieces_[first].previous_stage = stage.stage - 1;
}

void RankStages::mark_regions(const PlannedStage& stage, const ProgramTables& tables, std::size_t first_piece) {
  const std::vector<int>& segments = tables.stages[stage.stage].segments;
  const auto region = [&](std::size_t i) {
    return i < segments.size() ? tables.segments[segments[i]].region : std::nullopt;
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    StageSegment& piece = pieces_[first_piece + i];
    piece.recomputed = region(i).has_value();
    piece.begins_region = piece.recomputed && (i == 0 || region(i - 1) != region(i));
    piece.ends_region = piece.recomputed && region(i + 1) != region(i);
  }
}

std::vector<OwnedRows> RankStages::owned_rows(std::size_t unit) {
  return with_unit(unit, [](auto& kept) { return kept.owned_rows(); });
}

std::vector<std::pair<int, TensorView>> RankStages::selection_biases() {
  std::vector<std::pair<int, TensorView>> biases;
  for (const StageSegment& piece : pieces_) {
    const std::vector<ParameterSpec>& parameters = piece.segment->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].family != Family::helpers) continue;
      const ParameterPlace& place = piece.places[i];
      biases.emplace_back(piece.segment->part().block.value(), owned_rows(place.unit)[place.index].values);
    }
  }
  return biases;
}

void RankStages::begin_step(const StepBatch& batch, LossFactors factors, double loss_scale, StepReport report,
                            GenerationState* generation) {
  batch_ = batch;
  factors_ = factors;
  loss_scale_ = loss_scale;
  report_ = report;
  generation_ = generation;
  for (std::size_t u = 0; u < units_.size(); ++u) with_unit(u, [](auto& unit) { unit.begin_step(); });
  for (Lane lane : all_lanes) lanes_[lane].wait_for(kernels_.stream);
}

void RankStages::end_step() {
  groups_.flush_messages();
  sent_.clear();
  require(saved_.empty() && boundary_.empty() && checkpoints_.empty() && host_activations_.empty(),
          "every microbatch of the step has come back");
}

std::vector<ConstTensorView> RankStages::weights_of(const StageSegment& piece) {
  std::vector<ConstTensorView> weights;
  weights.reserve(piece.places.size());
  for (const ParameterPlace& place : piece.places) {
    if (units_[place.unit]) units_[place.unit]->wait_until_unsharded();
    weights.push_back(with_unit(place.unit, [&](auto& unit) { return unit.parameter(place.index); }));
  }
  return weights;
}

std::vector<Gradient> RankStages::gradients_of(const StageSegment& piece) {
  std::vector<Gradient> gradients;
  gradients.reserve(piece.places.size());
  for (const ParameterPlace& place : piece.places) {
    gradients.push_back(with_unit(place.unit, [&](auto& unit) { return unit.gradient(place.index); }));
  }
  return gradients;
}

MicrobatchInput RankStages::text_of(int microbatch) const {
  const auto of_microbatch = [&, tokens = inputs_.microbatch_tokens](ConstTensorView all) {
    return all.empty() ? all : all.rows_from(microbatch * tokens, tokens);
  };
  MicrobatchInput text{of_microbatch(batch_.tokens), of_microbatch(batch_.targets),
                       of_microbatch(batch_.document_begins)};
  for (const auto& [tokens, targets] : batch_.following) {
    text.following.push_back({of_microbatch(tokens), of_microbatch(targets)});
  }
  text.noise_keys = of_microbatch(batch_.noise_keys);
  // As the rank reads them (BatchPlan::sample).
  text.number = batch_.number + std::int64_t{microbatch} * inputs_.data_ranks + inputs_.data_rank;
  return text;
}

// Text that is generated lengthens its cache.
void RankStages::begin_capture(int segment, Captured call) {
  if (!piece(segment).fixed || generation_ != nullptr) return;
  kernels_.stream.begin_capture(segment * std::int64_t{4} + static_cast<std::int64_t>(call));
}

void RankStages::perform(const ProgramTables& tables, const Action& action) {
  // Of these, a case reads only what its action has.
  const int segment = *action.segment, microbatch = *action.microbatch, stage = *action.stage, peer = *action.peer;
  const auto unit = [&] { return local_unit_[*action.unit]; };
  const auto shard = [&]() -> ShardUnit& { return *units_[unit()]; };
  switch (action.op) {
    case Op::forward:
      return forward(segment, microbatch, action.part);
    case Op::backward:
      backward_input(segment, microbatch, action.part);
      if (action.part.last()) backward_weight(segment, microbatch);
      return;
    case Op::backward_input:
      return backward_input(segment, microbatch, action.part);
    case Op::backward_weight:
      return backward_weight(segment, microbatch);
    case Op::recompute:
      return recompute(segment, microbatch, action.part);
    case Op::rows_forward:
    case Op::rows_recompute:
    case Op::rows_backward:
      return exchange_rows(segment, microbatch);
    case Op::offload:
      return offload(segment, microbatch);
    case Op::wait_offload:
      return host_activations_.wait_offload({segment, microbatch});
    case Op::reload:
      return host_activations_.reload({segment, microbatch});
    case Op::unshard:
      return shard().unshard();
    case Op::unshard_secondary:
      return shard().unshard_secondary();
    case Op::reshard:
      return shard().reshard();
    case Op::reshard_secondary:
      return shard().reshard_to_island();
    case Op::scatter_gradient:
      return shard().scatter_gradient();
    case Op::reduce_gradient:
      return with_unit(unit(), [](auto& of) { of.reduce_gradient(); });
    case Op::tie_gradient:
      return tie_gradient(unit());
    case Op::wait_reduction:
      return with_unit(unit(), [](auto& of) { of.wait_reduction(); });
    case Op::send_forward:
    case Op::send_backward:
      return send(lane_of(tables, action), stage, microbatch, peer);
    case Op::receive_forward:
    case Op::receive_backward:
      return receive(lane_of(tables, action), stage, microbatch, peer);
    case Op::gradient_norm:
    case Op::optimizer_step:
      fail("a forward program has neither backward nor update");
  }
}

void RankStages::forward(int segment, int microbatch, ComputePart part) {
  StageSegment& here = piece(segment);
  LayerContext layer = context(part);
  Tensor x = part.first() ? take_boundary(here.stage, microbatch) : Tensor();
  std::unique_ptr<Saved> kept = part.first() ? nullptr : std::move(saved_.at({here.segment, microbatch}));
  const auto weights = weights_of(here);
  begin_capture(segment, Captured::forward);
  Tensor y = here.segment->forward(layer, weights, text_of(microbatch), std::move(x), kept);
  kernels_.stream.end_capture();
  if (part.last()) {
    // Saved tensors are kept only if a backward reads them.
    if (here.begins_region) checkpoints_[{here.segment, microbatch}] = here.segment->take_input(*kept);
    if (here.recomputed) kept = here.segment->remembered(std::move(kept));
    if (y.allocated()) boundary_[{here.next_stage, microbatch}] = {std::move(y), nullptr};
  }
  if (!part.last() || !forward_only_) saved_[{here.segment, microbatch}] = std::move(kept);
}

void RankStages::exchange_rows(int segment, int microbatch) {
  StageSegment& here = piece(segment);
  LayerContext layer = context();
  here.segment->exchange_rows(layer, *saved_.at({here.segment, microbatch}));
}

void RankStages::offload(int segment, int microbatch) {
  const StageSegment& here = piece(segment);
  const std::pair<const Segment*, int> key(here.segment, microbatch);
  host_activations_.offload({segment, microbatch}, here.recomputed ? std::vector<Tensor*>{&checkpoints_.at(key)}
                                                                   : saved_.at(key)->offloadable());
}

void RankStages::backward_input(int segment, int microbatch, ComputePart part) {
  StageSegment& here = piece(segment);
  LayerContext layer = context(part);
  host_activations_.wait_reload({segment, microbatch});
  Tensor dy = part.first() ? take_boundary(here.stage, microbatch) : Tensor();
  const auto weights = here.segment->reads_weights_backward() ? weights_of(here) : std::vector<ConstTensorView>();
  begin_capture(segment, Captured::backward_input);
  Tensor dx = here.segment->backward_input(layer, weights, std::move(dy), *saved_.at({here.segment, microbatch}));
  kernels_.stream.end_capture();
  if (dx.allocated()) boundary_[{here.previous_stage, microbatch}] = {std::move(dx), nullptr};
}

void RankStages::backward_weight(int segment, int microbatch) {
  StageSegment& here = piece(segment);
  LayerContext layer = context();
  const auto saved = saved_.find({here.segment, microbatch});
  require(saved != saved_.end(), "a weight gradient follows the forward of its microbatch, once");
  const auto gradients = gradients_of(here);
  begin_capture(segment, Captured::backward_weight);
  here.segment->backward_weight(layer, gradients, *saved->second);
  kernels_.stream.end_capture();
  saved_.erase(saved);
}

void RankStages::recompute(int segment, int microbatch, ComputePart part) {
  StageSegment& here = piece(segment);
  LayerContext layer = context(part);
  layer.recomputing = true;
  host_activations_.wait_reload({segment, microbatch});
  Tensor x;
  if (part.first()) {
    const auto found = checkpoints_.find({here.segment, microbatch});
    require(found != checkpoints_.end(), "a forward runs again from what was kept for it, once");
    x = std::move(found->second);
    checkpoints_.erase(found);
  }
  std::unique_ptr<Saved>& kept = saved_[{here.segment, microbatch}];
  const auto weights = weights_of(here);
  begin_capture(segment, Captured::recompute);
  Tensor y = here.segment->forward(layer, weights, text_of(microbatch), std::move(x), kept);
  kernels_.stream.end_capture();
  // The output of the last piece is not needed: the forward has already passed it on.
  if (part.last() && !here.ends_region) checkpoints_[{(&here + 1)->segment, microbatch}] = std::move(y);
}

// All copies get the bits of one sum: those of a rank are added before the ranks' sums, and take the result.
void RankStages::tie_gradient(std::size_t unit) {
  const TiedUnits& tied = tied_[unit];
  const auto gradient_of = [&](std::size_t of) {
    return planned_units_[of]->ties_unreduced() ? units_[of]->accumulated_gradient() : units_[of]->shard_gradient();
  };
  const TensorView sum = gradient_of(tied.here.front());
  const auto others = std::span(tied.here).subspan(1);
  Stream& reduce_lane = lanes_[Lane::reduce];
  for (const std::size_t copy : others) add(reduce_lane, gradient_of(copy), sum);
  if (tied.ranks.size() > 1) groups_.tied(tied.ranks).all_reduce(sum);
  for (const std::size_t copy : others) cast(reduce_lane, sum, gradient_of(copy));
}

void RankStages::send(Lane lane, int stage, int microbatch, int peer) {
  const auto found = boundary_.find({stage, microbatch});
  require(found != boundary_.end() && found->second.tensor.allocated(), "what is sent has been computed");
  Communicator& group = groups_.messages(lane, peer);
  group.stream().wait_for(kernels_.stream);
  group.send(found->second.tensor, peer);
  found->second.tensor.release_on(group.stream());
  // Replaces the message before this one, which the peer has received by now.
  sent_[{lane, peer}] = std::move(found->second.tensor);
  boundary_.erase(found);
}

void RankStages::receive(Lane lane, int stage, int microbatch, int peer) {
  const PlannedBoundary& boundary = inputs_.boundary;
  Communicator& group = groups_.messages(lane, peer);
  Tensor tensor =
      kernels_.ledger.allocate_on(group.stream(), Bucket::activations, boundary.dtype, boundary.rows, boundary.columns);
  group.receive(tensor, peer);
  tensor.release_on(kernels_.stream);
  boundary_[{stage, microbatch}] = {std::move(tensor), group.stream().record()};
}

Tensor RankStages::take_boundary(int stage, int microbatch) {
  const auto found = boundary_.find({stage, microbatch});
  if (found == boundary_.end()) return {};
  if (found->second.arrived) kernels_.stream.wait(found->second.arrived);
  Tensor tensor = std::move(found->second.tensor);
  boundary_.erase(found);
  return tensor;
}

std::optional<std::string> RankStages::nonfinite_parameter() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (auto found = with_unit(u, [](auto& unit) { return unit.nonfinite_parameter(); })) return found;
  }
  return std::nullopt;
}

}  // namespace weft
