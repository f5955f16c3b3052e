#include "parallel/shard/replicated.h"

#include <iterator>

#include "parallel/runtime/elementwise.h"

namespace weft {

std::int64_t ReplicatedParameters::bytes(const std::vector<ParameterSpec>& parameters) {
  return parameter_elements(parameters) * size_of(DType::float32);
}

std::int64_t ReplicatedParameters::copy_bytes(const std::vector<ParameterSpec>& parameters, DType compute) {
  return compute == DType::float32 ? 0 : parameter_elements(parameters) * size_of(compute);
}

ReplicatedParameters::ReplicatedParameters(std::vector<ParameterSpec> parameters, bool frozen, Communicator& tokens,
                                           Lanes& lanes, MemoryLedger& ledger, DType compute)
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
  if (compute != DType::float32) copy_ = ledger.allocate(Bucket::replicated_parameters, compute, size_, 1);
  if (frozen_) return;
  gradient_ = ledger.allocate(Bucket::sharded_gradients, DType::float32, size_, 1);
  fill(compute_, gradient_, 0.0f);
}

ConstTensorView ReplicatedParameters::parameter(std::size_t index) const {
  return parameter_view(copy_.allocated() ? copy_.view() : values_.view(), offsets_[index], parameters_[index]);
}

Gradient ReplicatedParameters::gradient(std::size_t index) {
  if (frozen_) return {};
  if (!pending_.allocated()) {
    pending_ = ledger_.allocate(Bucket::unsharded_gradients, DType::float32, size_, 1);
    fill(compute_, pending_, 0.0f);
  }
  return {parameter_view(pending_.view(), offsets_[index], parameters_[index])};
}

void ReplicatedParameters::reduce_gradient() {
  require(pending_.allocated(), "a reduction follows a weight gradient");
  reduce_lane_.wait_for(compute_);
  count_nonfinite(reduce_lane_, pending_, parameters_, offsets_, nonfinite_);
  tokens_.all_reduce(pending_);
  add(reduce_lane_, pending_, gradient_);
  pending_.release_on(reduce_lane_);
  pending_.reset();
  reduced_ = reduce_lane_.record();
}

void ReplicatedParameters::begin_step() {
  fill(compute_, nonfinite_, 0.0f);
  if (copy_.allocated()) cast(compute_, values_, copy_);
  if (!frozen_) fill(compute_, gradient_, 0.0f);
}

std::vector<OwnedRows> ReplicatedParameters::owned_rows() {
  std::vector<OwnedRows> owned;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterSpec& spec = parameters_[i];
    const auto whole = [&](Tensor& all) {
      return all.allocated() ? parameter_view(all.view(), offsets_[i], spec) : TensorView();
    };
    owned.push_back({&spec, spec.row_begin, spec.rows, whole(values_), whole(gradient_), offsets_[i]});
  }
  return owned;
}

}  // namespace weft
