#include "parallel/shard/replicated.h"

#include <iterator>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"

namespace weft {

std::int64_t ReplicatedParameters::bytes(const std::vector<ParameterSpec>& parameters) {
  std::int64_t size = 0;
  for (const ParameterSpec& parameter : parameters) size += parameter.size();
  return size * size_of(DType::float32);
}

ReplicatedParameters::ReplicatedParameters(std::vector<ParameterSpec> parameters, bool frozen, Communicator& tokens,
                                           Lanes& lanes, MemoryLedger& ledger)
    : parameters_(std::move(parameters)),
      frozen_(frozen),
      tokens_(tokens),
      compute_(lanes[Lane::compute]),
      reduce_lane_(lanes[Lane::reduce]),
      ledger_(ledger),
      nonfinite_(ledger.allocate(Bucket::workspace, DType::int32, std::ssize(parameters_), 1)) {
  for (const ParameterSpec& parameter : parameters_) {
    offsets_.push_back(size_);
    size_ += parameter.size();
  }
  values_ = ledger.allocate(Bucket::replicated_parameters, DType::float32, size_, 1);
  fill(compute_, values_, 0.0f);
  if (frozen_) return;
  gradient_ = ledger.allocate(Bucket::sharded_gradients, DType::float32, size_, 1);
  fill(compute_, gradient_, 0.0f);
}

ConstTensorView ReplicatedParameters::parameter(std::size_t index) const {
  const ParameterSpec& spec = parameters_[index];
  return values_.view().rows_from(offsets_[index], spec.size()).reshaped(spec.rows, spec.columns);
}

TensorView ReplicatedParameters::gradient(std::size_t index) {
  if (frozen_) return {};
  if (!pending_.allocated()) {
    pending_ = ledger_.allocate(Bucket::unsharded_gradients, DType::float32, size_, 1);
    fill(compute_, pending_, 0.0f);
  }
  const ParameterSpec& spec = parameters_[index];
  return pending_.view().rows_from(offsets_[index], spec.size()).reshaped(spec.rows, spec.columns);
}

void ReplicatedParameters::reduce_gradient() {
  require(pending_.allocated(), "a reduction follows a weight gradient");
  reduce_lane_.wait_for(compute_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    count_nonfinite(reduce_lane_, gradient(i), nonfinite_.view().rows_from(static_cast<std::int64_t>(i), 1));
  }
  tokens_.all_reduce(pending_);
  add(reduce_lane_, pending_, gradient_);
  pending_.release_on(reduce_lane_);
  pending_.reset();
  reduced_ = reduce_lane_.record();
}

std::optional<std::string> ReplicatedParameters::nonfinite_parameter() {
  const std::vector<std::int32_t> counts = read<std::int32_t>(reduce_lane_, nonfinite_);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) return parameters_[i].name;
  }
  return std::nullopt;
}

void ReplicatedParameters::begin_step() {
  fill(compute_, nonfinite_, 0.0f);
  if (!frozen_) fill(compute_, gradient_, 0.0f);
}

std::vector<OwnedRows> ReplicatedParameters::owned_rows() {
  std::vector<OwnedRows> owned;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterSpec& spec = parameters_[i];
    const auto whole = [&](Tensor& of_all) {
      if (!of_all.allocated()) return TensorView();
      return of_all.view().rows_from(offsets_[i], spec.size()).reshaped(spec.rows, spec.columns);
    };
    owned.push_back({&spec, spec.row_begin, spec.rows, whole(values_), whole(gradient_), offsets_[i]});
  }
  return owned;
}

}  // namespace weft
