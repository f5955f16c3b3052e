#include "parallel/shard/unit.h"

#include <algorithm>
#include <iterator>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"

namespace weft {

UnitBytes unit_bytes(const UnitSetup& setup) {
  const std::int64_t shard = setup.layout.shard_size, all = setup.layout.unsharded_size();
  const DType reduction = setup.precision.reduction;
  UnitBytes bytes;
  bytes.sharded_parameters = shard * size_of(setup.precision.stored);
  if (!setup.computes_on_shard()) bytes.unsharded_parameters = all * size_of(setup.precision.compute);
  if (setup.island_ranks > 0) bytes.island_parameters = bytes.unsharded_parameters / setup.island_ranks;
  if (setup.frozen) return bytes;
  bytes.sharded_gradients = shard * size_of(DType::float32);
  if (!setup.accumulates_in_shard()) bytes.unsharded_gradients = all * size_of(DType::float32);
  if (reduction != DType::float32) bytes.reduce_input = all * size_of(reduction);
  if (!setup.whole() && !setup.reduces_into_shard()) bytes.reduce_part = shard * size_of(reduction);
  return bytes;
}

void count_nonfinite(Stream& stream, TensorView gradients, std::span<const ParameterSpec> parameters,
                     std::span<const std::int64_t> offsets, TensorView counts) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    count_nonfinite(stream, gradients.rows_from(offsets[i], parameters[i].size()),
                    counts.rows_from(static_cast<std::int64_t>(i), 1));
  }
}

std::optional<std::string> first_nonfinite(Stream& stream, ConstTensorView counts,
                                           std::span<const ParameterSpec> parameters) {
  const std::vector<std::int32_t> values = read<std::int32_t>(stream, counts);
  const auto found = std::ranges::find_if(values, [](std::int32_t count) { return count != 0; });  // 2^31 is negative
  return found == values.end() ? std::nullopt : std::optional(parameters[found - values.begin()].name);
}

ShardUnit::ShardUnit(UnitSetup setup, const UnitGroups& groups, Lanes& lanes, ReduceInputs& reduce_inputs,
                     MemoryLedger& ledger)
    : setup_(std::move(setup)),
      groups_(groups),
      compute_(lanes[Lane::compute]),
      gather_lane_(lanes[Lane::gather]),
      reduce_lane_(lanes[Lane::reduce]),
      reduce_inputs_(reduce_inputs),
      ledger_(ledger),
      nonfinite_(ledger.allocate(Bucket::workspace, DType::int32, std::ssize(setup_.layout.parameters), 1)),
      shard_(ledger.allocate(Bucket::sharded_parameters, setup_.precision.stored, setup_.layout.shard_size, 1)) {
  require(setup_.whole() || setup_.layout.shards == groups.shard->size(), "a sharded unit has one shard per rank");
  require(setup_.island_ranks == 0 || (groups.island != nullptr && groups.island->size() == setup_.island_ranks),
          "a unit with an island has its group");
  fill(compute_, shard_, 0.0f);
  if (setup_.frozen) return;
  shard_gradient_ = ledger.allocate(Bucket::sharded_gradients, DType::float32, setup_.layout.shard_size, 1);
  fill(compute_, shard_gradient_, 0.0f);
}

void ShardUnit::allocate_unsharded() {
  if (setup_.follows_compute) gather_lane_.wait_for(compute_);
  unsharded_parameters_ = ledger_.allocate_on(gather_lane_, Bucket::unsharded_parameters, setup_.precision.compute,
                                              setup_.layout.unsharded_size(), 1);
}

void ShardUnit::give_back_unsharded() {
  gather_lane_.wait_for(compute_);
  unsharded_parameters_.reset();
}

TensorView ShardUnit::own_part(const Communicator& group) {
  const std::int64_t size = unsharded_parameters_.rows() / group.size();
  return unsharded_parameters_.view().rows_from(group.rank() * size, size);
}

void ShardUnit::unshard() {
  require(!unsharded_ && !in_island_, "unshard of a unit that is sharded");
  unsharded_ = true;
  if (setup_.computes_on_shard()) return;
  allocate_unsharded();
  // The shard is converted directly into its place in the full buffer: the gather needs no copy-in.
  const TensorView part = setup_.whole() ? unsharded_parameters_.view() : own_part(*groups_.gather);
  cast(gather_lane_, shard_, part);
  if (!setup_.whole()) groups_.gather->all_gather(part, unsharded_parameters_);
  gathered_ = gather_lane_.record();
}

void ShardUnit::unshard_secondary() {
  require(in_island_, "a gather over the island follows a reshard to it");
  in_island_ = false;
  unsharded_ = true;
  allocate_unsharded();
  const TensorView part = own_part(*groups_.island);
  cast(gather_lane_, island_parameters_, part);
  island_parameters_.reset();
  groups_.island->all_gather(part, unsharded_parameters_);
  gathered_ = gather_lane_.record();
}

void ShardUnit::wait_until_unsharded() {
  require(unsharded_, "compute waits for a unit that is being unsharded");
  compute_.wait(std::exchange(gathered_, nullptr));
}

void ShardUnit::reshard() {
  require(unsharded_, "reshard of a unit that is not unsharded");
  unsharded_ = false;
  gathered_ = nullptr;  // discards the event of an unused gather
  if (unsharded_parameters_.allocated()) give_back_unsharded();
}

void ShardUnit::reshard_to_island() {
  require(unsharded_ && setup_.island_ranks > 0, "reshard to the island of an unsharded unit that has one");
  unsharded_ = false;
  in_island_ = true;
  gathered_ = nullptr;
  const TensorView part = own_part(*groups_.island);
  island_parameters_ =
      ledger_.allocate_on(gather_lane_, Bucket::unsharded_parameters, part.dtype(), part.rows(), part.columns());
  cast(gather_lane_, part, island_parameters_);
  give_back_unsharded();
}

ConstTensorView ShardUnit::parameter(std::size_t index) const {
  require(unsharded_, "a parameter is read while its unit is unsharded");
  const ConstTensorView all = setup_.computes_on_shard() ? shard_.view() : unsharded_parameters_.view();
  return parameter_view(all, setup_.layout.offsets[index], setup_.layout.parameters[index]);
}

Gradient ShardUnit::gradient(std::size_t index) {
  if (setup_.frozen) return {};
  gradient_pending_ = true;
  const UnitLayout& layout = setup_.layout;
  const auto part_of = [&](TensorView all) {
    return parameter_view(all, layout.offsets[index], layout.parameters[index]);
  };
  if (setup_.accumulates_in_shard()) return {part_of(shard_gradient_)};
  if (!unsharded_gradient_.allocated()) {
    reduce_inputs_.make_room();
    unsharded_gradient_ = ledger_.allocate(Bucket::unsharded_gradients, DType::float32, layout.unsharded_size(), 1);
    written_.assign(layout.parameters.size(), false);
  }
  const bool fresh = !written_[index];
  written_[index] = true;
  return {part_of(unsharded_gradient_), fresh};
}

void ShardUnit::clear_rest() {
  const UnitLayout& layout = setup_.layout;
  std::int64_t begin = 0;
  const auto clear_until = [&](std::int64_t end) {
    if (end > begin) fill(compute_, unsharded_gradient_.view().rows_from(begin, end - begin), 0.0f);
  };
  for (std::size_t i = 0; i < written_.size(); ++i) {
    if (!written_[i]) continue;
    clear_until(layout.offsets[i]);
    begin = layout.offsets[i] + layout.parameters[i].size();
  }
  clear_until(layout.unsharded_size());
}

void ShardUnit::scatter_gradient() {
  require(setup_.accumulate_sharded && gradient_pending_, "a scatter follows a weight gradient that adds up in shards");
  gradient_pending_ = false;
  sum_pending_ = true;
  reduce_pending(false);
  reduced_.push_back(reduce_lane_.record());
}

void ShardUnit::reduce_gradient() {
  require(gradient_pending_ || sum_pending_, "a reduction follows a weight gradient");
  if (std::exchange(gradient_pending_, false)) reduce_pending(!setup_.accumulate_sharded);
  if (setup_.accumulate_sharded) sum_replicas();
  sum_pending_ = false;
  reduced_.push_back(reduce_lane_.record());
}

// The sum over replicas may be queued after the last input was put, so compute waits for the reduction's own event too.
void ShardUnit::wait_reduction() {
  require(waits_ < reduced_.size(), "compute waits for a reduction under way");
  compute_.wait(reduced_[waits_]);
  reduce_inputs_.wait_for(this, ++waits_);
}

TensorView ShardUnit::accumulated_gradient() {
  const UnitLayout& layout = setup_.layout;
  const TensorView gradient = setup_.accumulates_in_shard() ? shard_gradient_.view() : unsharded_gradient_.view();
  if (!counted_ && unsharded_gradient_.allocated()) clear_rest();
  reduce_lane_.wait_for(compute_);
  if (std::exchange(counted_, true)) return gradient;
  count_nonfinite(reduce_lane_, gradient, layout.parameters, layout.offsets, nonfinite_);
  return gradient;
}

void ShardUnit::reduce_pending(bool replicas) {
  const UnitLayout& layout = setup_.layout;
  const TensorView gradient = accumulated_gradient();
  counted_ = false;
  // The tensor ranks' partial gradients of norm weights are summed first, because tensor ranks process other tokens or
  // heads. Here every rank still has them at the same place. If the vocabulary is uneven, the cuts between shards may
  // differ between tensor ranks.
  if (groups_.tensor != nullptr && groups_.tensor->size() > 1) {
    groups_.tensor->all_reduce(gradient.rows_from(0, layout.tensor_replicated_size()));
  }
  if (setup_.precision.reduction == DType::float32) {
    add_sum(gradient, replicas);
    if (unsharded_gradient_.allocated()) reduce_inputs_.put(std::move(unsharded_gradient_), this, reduced_.size() + 1);
    return;
  }
  reduce_inputs_.make_room_for_copy();
  Tensor narrow =
      ledger_.allocate_on(reduce_lane_, Bucket::communication, setup_.precision.reduction, gradient.rows(), 1);
  cast(reduce_lane_, gradient, narrow);
  unsharded_gradient_.release_on(reduce_lane_);
  unsharded_gradient_.reset();
  add_sum(narrow, replicas);
  reduce_inputs_.put(std::move(narrow), this, reduced_.size() + 1);
}

// Always sums over the shard group first and then over the replicas, so that sharded and whole units add in the same
// order.
void ShardUnit::add_sum(TensorView gradient, bool replicas) {
  const bool first = setup_.reduced_once && !setup_.accumulate_sharded;  // the shard's gradient has no earlier part
  if (setup_.whole()) {
    groups_.shard->all_reduce(gradient);
    groups_.replicate->all_reduce(gradient);
    if (gradient.data() == shard_gradient_.view().data()) return;
    first ? cast(reduce_lane_, gradient, shard_gradient_) : add(reduce_lane_, gradient, shard_gradient_);
    return;
  }
  if (setup_.reduces_into_shard()) {
    groups_.shard->reduce_scatter(gradient, shard_gradient_);
    groups_.replicate->all_reduce(shard_gradient_);
    return;
  }
  Tensor part = ledger_.allocate_on(reduce_lane_, Bucket::communication, gradient.dtype(), setup_.layout.shard_size, 1);
  groups_.shard->reduce_scatter(gradient, part);
  if (replicas) groups_.replicate->all_reduce(part);
  first ? cast(reduce_lane_, part, shard_gradient_) : add(reduce_lane_, part, shard_gradient_);
}

void ShardUnit::sum_replicas() {
  if (groups_.replicate->size() == 1) return;
  if (setup_.precision.reduction == DType::float32) return groups_.replicate->all_reduce(shard_gradient_);
  Tensor part =
      ledger_.allocate_on(reduce_lane_, Bucket::communication, setup_.precision.reduction, setup_.layout.shard_size, 1);
  cast(reduce_lane_, shard_gradient_, part);
  groups_.replicate->all_reduce(part);
  cast(reduce_lane_, part, shard_gradient_);
}

void ShardUnit::begin_step() {
  reduced_.clear();
  waits_ = 0;
  fill(compute_, nonfinite_, 0.0f);
  if (setup_.frozen) return;
  // A shard gradient that a single sum overwrites need not be cleared.
  const bool overwritten = !setup_.whole() && setup_.reduced_once && !setup_.accumulate_sharded;
  if (!overwritten) fill(compute_, shard_gradient_, 0.0f);
}

std::vector<OwnedRows> ShardUnit::owned_rows() {
  std::vector<OwnedRows> owned;
  const std::int64_t index = setup_.whole() ? 0 : groups_.shard->rank();
  for (const RowBlock& block : setup_.layout.rows_of_shard(index)) {
    const ParameterSpec& spec = setup_.layout.parameters[block.parameter];
    const auto rows_of = [&](Tensor& shard) {
      if (!shard.allocated()) return TensorView();
      return shard.view().rows_from(block.offset, block.rows * spec.columns).reshaped(block.rows, spec.columns);
    };
    owned.push_back(
        {&spec, spec.row_begin + block.row_begin, block.rows, rows_of(shard_), rows_of(shard_gradient_), block.offset});
  }
  return owned;
}

}  // namespace weft
