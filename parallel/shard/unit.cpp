#include "parallel/shard/unit.h"

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"

namespace weft {

UnitBytes unit_bytes(const UnitLayout& layout, const UnitPrecision& precision, bool reduced_once) {
  const bool whole = layout.shards == 1;
  UnitBytes bytes;
  bytes.sharded_parameters = bytes.sharded_gradients = layout.shard_size * size_of(DType::float32);
  if (!whole || precision.compute != DType::float32) {
    bytes.unsharded_parameters = layout.unsharded_size() * size_of(precision.compute);
  }
  if (!whole || !reduced_once) bytes.unsharded_gradients = layout.unsharded_size() * size_of(DType::float32);
  return bytes;
}

ShardUnit::ShardUnit(UnitLayout layout, const UnitPrecision& precision, bool reduced_once, const UnitGroups& groups,
                     Lanes& lanes, MemoryLedger& ledger)
    : layout_(std::move(layout)),
      precision_(precision),
      reduced_once_(reduced_once),
      groups_(groups),
      compute_(lanes[Lane::compute]),
      gather_lane_(lanes[Lane::gather]),
      reduce_lane_(lanes[Lane::reduce]),
      ledger_(ledger),
      nonfinite_(ledger.allocate(Bucket::workspace, DType::int32, std::ssize(layout_.parameters), 1)),
      shard_(ledger.allocate(Bucket::sharded_parameters, DType::float32, layout_.shard_size, 1)),
      shard_gradient_(ledger.allocate(Bucket::sharded_gradients, DType::float32, layout_.shard_size, 1)) {
  require(layout_.shards == 1 || layout_.shards == groups.shard->size(), "a sharded unit has one shard per rank");
  fill(compute_, shard_, 0.0f);
  fill(compute_, shard_gradient_, 0.0f);
}

bool ShardUnit::computes_on_shard() const {
  return layout_.shards == 1 && precision_.compute == DType::float32;
}
bool ShardUnit::accumulates_in_shard() const {
  return layout_.shards == 1 && reduced_once_;
}

void ShardUnit::unshard() {
  require(!unsharded_, "unshard of a unit that is already unsharded");
  unsharded_ = true;
  if (computes_on_shard()) return;
  unsharded_parameters_ =
      ledger_.allocate_on(gather_lane_, Bucket::unsharded_parameters, precision_.compute, layout_.unsharded_size(), 1);
  // The shard is converted straight into its own place: the gather needs no copy-in.
  const std::int64_t own = layout_.shards == 1 ? 0 : groups_.shard->rank();
  const TensorView part = unsharded_parameters_.view().rows_from(own * layout_.shard_size, layout_.shard_size);
  cast(gather_lane_, shard_, part);
  if (layout_.shards > 1) groups_.gather->all_gather(part, unsharded_parameters_);
  gathered_ = gather_lane_.record();
}

void ShardUnit::wait_until_unsharded() {
  require(unsharded_, "compute waits for a unit that is being unsharded");
  compute_.wait(std::exchange(gathered_, nullptr));
}

void ShardUnit::reshard() {
  require(unsharded_, "reshard of a unit that is not unsharded");
  unsharded_ = false;
  if (!unsharded_parameters_.allocated()) return;
  // The room goes to gathers that come after this point of the list, once compute is done with it.
  gather_lane_.wait_for(compute_);
  unsharded_parameters_.reset();
}

ConstTensorView ShardUnit::parameter(std::size_t index) const {
  require(unsharded_, "a parameter is read while its unit is unsharded");
  const ParameterSpec& spec = layout_.parameters[index];
  const ConstTensorView all = computes_on_shard() ? shard_.view() : unsharded_parameters_.view();
  return all.rows_from(layout_.offsets[index], spec.size()).reshaped(spec.rows, spec.columns);
}

TensorView ShardUnit::gradient(std::size_t index) {
  if (!accumulates_in_shard() && !unsharded_gradient_.allocated()) {
    unsharded_gradient_ = ledger_.allocate(Bucket::unsharded_gradients, DType::float32, layout_.unsharded_size(), 1);
    fill(compute_, unsharded_gradient_, 0.0f);
  }
  gradient_pending_ = true;
  const ParameterSpec& spec = layout_.parameters[index];
  const TensorView all = accumulates_in_shard() ? shard_gradient_.view() : unsharded_gradient_.view();
  return all.rows_from(layout_.offsets[index], spec.size()).reshaped(spec.rows, spec.columns);
}

void ShardUnit::reduce_gradient() {
  require(gradient_pending_, "a reduction follows a weight gradient");
  gradient_pending_ = false;
  const TensorView gradient = accumulates_in_shard() ? shard_gradient_.view() : unsharded_gradient_.view();
  reduce_lane_.wait_for(compute_);
  for (std::size_t i = 0; i < layout_.parameters.size(); ++i) {
    count_nonfinite(reduce_lane_, gradient.rows_from(layout_.offsets[i], layout_.parameters[i].size()),
                    nonfinite_.view().rows_from(static_cast<std::int64_t>(i), 1));
  }
  // Other tensor ranks saw other tokens or heads: their parts of norm weights are summed first, while every rank still
  // has them at the same place (shards of different tensor ranks may cut differently when a vocabulary is uneven).
  if (groups_.tensor != nullptr && groups_.tensor->size() > 1) {
    groups_.tensor->all_reduce(gradient.rows_from(0, layout_.tensor_replicated_size()));
  }
  if (precision_.reduction == DType::float32) {
    reduce_in(DType::float32, gradient);
  } else {
    Tensor narrow = ledger_.allocate_on(reduce_lane_, Bucket::communication, precision_.reduction, gradient.rows(), 1);
    cast(reduce_lane_, gradient, narrow);
    reduce_in(precision_.reduction, narrow);
  }
  unsharded_gradient_.release_on(reduce_lane_);
  unsharded_gradient_.reset();
}

std::optional<std::string> ShardUnit::nonfinite_parameter() {
  const std::vector<std::int32_t> counts = read<std::int32_t>(reduce_lane_, nonfinite_);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) return layout_.parameters[i].name;
  }
  return std::nullopt;
}

// Always first over the shard group and then over the replicas, so that sharding or not sharding adds in the same
// order.
void ShardUnit::reduce_in(DType dtype, TensorView gradient) {
  if (layout_.shards == 1) {
    groups_.shard->all_reduce(gradient);
    groups_.replicate->all_reduce(gradient);
    if (gradient.data() == shard_gradient_.view().data()) return;
    if (accumulates_in_shard()) {
      cast(reduce_lane_, gradient, shard_gradient_);
    } else {
      add(reduce_lane_, gradient, shard_gradient_);
    }
    return;
  }
  if (reduced_once_ && dtype == DType::float32) {
    groups_.shard->reduce_scatter(gradient, shard_gradient_);
    groups_.replicate->all_reduce(shard_gradient_);
    return;
  }
  Tensor part = ledger_.allocate_on(reduce_lane_, Bucket::communication, dtype, layout_.shard_size, 1);
  groups_.shard->reduce_scatter(gradient, part);
  groups_.replicate->all_reduce(part);
  if (reduced_once_) {
    cast(reduce_lane_, part, shard_gradient_);
  } else {
    add(reduce_lane_, part, shard_gradient_);
  }
}

void ShardUnit::begin_step() {
  fill(compute_, nonfinite_, 0.0f);
  // A shard that is reduced once is overwritten by that reduction.
  if (layout_.shards == 1 || !reduced_once_) fill(compute_, shard_gradient_, 0.0f);
}

std::vector<OwnedRows> ShardUnit::owned_rows() {
  std::vector<OwnedRows> owned;
  const std::int64_t index = layout_.shards == 1 ? 0 : groups_.shard->rank();
  for (const RowBlock& block : layout_.rows_of_shard(index)) {
    const ParameterSpec& spec = layout_.parameters[block.parameter];
    const auto rows_of = [&](Tensor& shard) {
      return shard.view().rows_from(block.offset, block.rows * spec.columns).reshaped(block.rows, spec.columns);
    };
    owned.push_back(
        {&spec, spec.row_begin + block.row_begin, block.rows, rows_of(shard_), rows_of(shard_gradient_), block.offset});
  }
  return owned;
}

}  // namespace weft
