#include "trainer/stage_runtime.h"

#include <algorithm>

#include "parallel/runtime/staging.h"
#include "trainer/initialize.h"

namespace weft {
namespace {

std::vector<ParameterSpec> parameters_in_order(const PlannedUnit& unit) {
  return unit.plan.replicated() ? unit.plan.parameters : unit.layout.parameters;
}

}  // namespace

StageRuntime::StageRuntime(PlannedStage planned, const ProgramTables& tables, std::uint64_t seed, Lanes& lanes,
                           RankGroups& groups, KernelContext& kernels)
    : planned_(std::move(planned)),
      lanes_(lanes),
      groups_(groups),
      kernels_(kernels),
      reduce_inputs_(tables.reduce_inputs, lanes[Lane::compute], lanes[Lane::reduce]) {
  const auto of_stage = [&](const auto& entry) { return entry.stage == planned_.stage; };
  first_segment_ = static_cast<int>(std::find_if(tables.segments.begin(), tables.segments.end(), of_stage) -
                                    tables.segments.begin());
  first_unit_ =
      static_cast<int>(std::find_if(tables.units.begin(), tables.units.end(), of_stage) - tables.units.begin());

  rotary_table_ = kernels.ledger.allocate(Bucket::workspace, DType::float32, planned_.rotary.heads.sequence_length,
                                          planned_.rotary.heads.head_dim);
  write<float>(kernels.stream, rotary_table(planned_.rotary, planned_.positions), rotary_table_);

  std::map<std::string, ParameterPlace> place_of;
  for (std::size_t u = 0; u < planned_.units.size(); ++u) {
    const PlannedUnit& unit = planned_.units[u];
    const auto parameters = parameters_in_order(unit);
    for (std::size_t i = 0; i < parameters.size(); ++i) place_of[parameters[i].name] = {u, i};
    if (unit.plan.replicated()) {
      units_.push_back(nullptr);
      replicated_.push_back(std::make_unique<ReplicatedParameters>(
          parameters, unit.frozen, groups.on(Lane::reduce, Group::tokens), lanes, kernels.ledger));
    } else {
      const bool partial = unit.layout.tensor_replicated_size() > 0;
      const int island = unit.policy.island_ranks;
      const UnitGroups unit_groups{.gather = &groups.on(Lane::gather, unit.shard_group),
                                   .island = island > 0 ? &groups.island({unit.shard_group, island}) : nullptr,
                                   .shard = &groups.on(Lane::reduce, unit.shard_group),
                                   .replicate = &groups.on(Lane::reduce, unit.replicate_group),
                                   .tensor = partial ? &groups.on(Lane::reduce, Group::tp) : nullptr};
      units_.push_back(std::make_unique<ShardUnit>(unit.setup(), unit_groups, lanes, reduce_inputs_, kernels.ledger));
      replicated_.push_back(nullptr);
    }
    for (const OwnedRows& rows : owned_rows(u)) initialize_rows(kernels.stream, rows, seed);
  }
  for (const auto& segment : planned_.segments) {
    std::vector<ParameterPlace> places;
    for (const ParameterSpec& parameter : segment->parameters()) places.push_back(place_of.at(parameter.name));
    places_.push_back(std::move(places));
  }
}

std::vector<OwnedRows> StageRuntime::owned_rows(std::size_t unit) {
  return units_[unit] ? units_[unit]->owned_rows() : replicated_[unit]->owned_rows();
}

void StageRuntime::begin_step(const StepBatch& batch, double loss_factor, double loss_scale, StepReport report) {
  batch_ = batch;
  loss_factor_ = loss_factor;
  loss_scale_ = loss_scale;
  report_ = report;
  for (std::size_t u = 0; u < planned_.units.size(); ++u) {
    units_[u] ? units_[u]->begin_step() : replicated_[u]->begin_step();
  }
  for (Lane lane : all_lanes) lanes_[lane].wait_for(kernels_.stream);
}

void StageRuntime::end_step() {
  for (Lane lane : groups_.transfers()) groups_.on(lane, Group::pp).flush();
  sent_.clear();
  require(saved_.empty() && flowing_.empty(), "every microbatch of the step has come back");
}

std::size_t StageRuntime::local_segment(int segment) const {
  return static_cast<std::size_t>(segment - first_segment_);
}
std::size_t StageRuntime::local_unit(int unit) const {
  return static_cast<std::size_t>(unit - first_unit_);
}

std::vector<ConstTensorView> StageRuntime::weights_of(std::size_t segment) {
  std::vector<ConstTensorView> weights;
  weights.reserve(places_[segment].size());
  for (const ParameterPlace& place : places_[segment]) {
    if (units_[place.unit]) units_[place.unit]->wait_until_unsharded();
    weights.push_back(units_[place.unit] ? units_[place.unit]->parameter(place.index)
                                         : replicated_[place.unit]->parameter(place.index));
  }
  return weights;
}

std::vector<TensorView> StageRuntime::gradients_of(std::size_t segment) {
  std::vector<TensorView> gradients;
  gradients.reserve(places_[segment].size());
  for (const ParameterPlace& place : places_[segment]) {
    gradients.push_back(units_[place.unit] ? units_[place.unit]->gradient(place.index)
                                           : replicated_[place.unit]->gradient(place.index));
  }
  return gradients;
}

void StageRuntime::forward(int segment, int microbatch) {
  const std::size_t local = local_segment(segment);
  const std::int64_t tokens = planned_.microbatch_tokens;
  const MicrobatchInput input{batch_.tokens.rows_from(microbatch * tokens, tokens),
                              batch_.targets.rows_from(microbatch * tokens, tokens)};
  LayerContext layer = context();
  Tensor x = take_flowing(microbatch);
  Tensor y =
      planned_.segments[local]->forward(layer, weights_of(local), input, std::move(x), saved_[{local, microbatch}]);
  flowing_[microbatch] = {std::move(y), nullptr};
}

void StageRuntime::backward_input(int segment, int microbatch) {
  const std::size_t local = local_segment(segment);
  LayerContext layer = context();
  Tensor dy = take_flowing(microbatch);
  Segment& piece = *planned_.segments[local];
  const auto weights = piece.reads_weights_backward() ? weights_of(local) : std::vector<ConstTensorView>();
  Tensor dx = piece.backward_input(layer, weights, std::move(dy), *saved_.at({local, microbatch}));
  if (dx.allocated()) {
    flowing_[microbatch] = {std::move(dx), nullptr};
  } else {
    flowing_.erase(microbatch);
  }
}

void StageRuntime::backward_weight(int segment, int microbatch) {
  const std::size_t local = local_segment(segment);
  LayerContext layer = context();
  const auto saved = saved_.find({local, microbatch});
  require(saved != saved_.end(), "a weight gradient follows the forward of its microbatch, once");
  planned_.segments[local]->backward_weight(layer, gradients_of(local), *saved->second);
  saved_.erase(saved);
}

void StageRuntime::unshard(Op op, int unit) {
  ShardUnit& shard = *units_[local_unit(unit)];
  op == Op::unshard_island ? shard.unshard_island() : shard.unshard();
}
void StageRuntime::reshard(Op op, int unit) {
  ShardUnit& shard = *units_[local_unit(unit)];
  op == Op::reshard_island ? shard.reshard_to_island() : shard.reshard();
}
void StageRuntime::scatter_gradient(int unit) {
  units_[local_unit(unit)]->scatter_gradient();
}
void StageRuntime::reduce_gradient(int unit) {
  const std::size_t local = local_unit(unit);
  units_[local] ? units_[local]->reduce_gradient() : replicated_[local]->reduce_gradient();
}

void StageRuntime::send(Lane lane, int microbatch, int peer) {
  const auto found = flowing_.find(microbatch);
  require(found != flowing_.end() && found->second.tensor.allocated(), "what is sent has been computed");
  Communicator& group = groups_.on(lane, Group::pp);
  group.stream().wait_for(kernels_.stream);
  group.send(found->second.tensor, peer);
  found->second.tensor.release_on(group.stream());
  // The peer has received the message before this one by now: its tensor may go.
  sent_[{lane, peer}] = std::move(found->second.tensor);
  flowing_.erase(found);
}

void StageRuntime::receive(Lane lane, int microbatch, int peer) {
  const PlannedBoundary& boundary = planned_.boundary;
  Communicator& group = groups_.on(lane, Group::pp);
  Tensor tensor =
      kernels_.ledger.allocate_on(group.stream(), Bucket::activations, boundary.dtype, boundary.rows, boundary.columns);
  group.receive(tensor, peer);
  tensor.release_on(kernels_.stream);
  flowing_[microbatch] = {std::move(tensor), group.stream().record()};
}

Tensor StageRuntime::take_flowing(int microbatch) {
  Flowing flowing = std::move(flowing_[microbatch]);
  if (flowing.arrived) kernels_.stream.wait(flowing.arrived);
  return std::move(flowing.tensor);
}

std::optional<std::string> StageRuntime::nonfinite_parameter() {
  for (std::size_t u = 0; u < planned_.units.size(); ++u) {
    auto found = units_[u] ? units_[u]->nonfinite_parameter() : replicated_[u]->nonfinite_parameter();
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace weft
