#include "parallel/shard/replicated.h"

#include "parallel/runtime/elementwise.h"

namespace weft {

std::int64_t ReplicatedParameters::bytes(const std::vector<ParameterSpec>& parameters) {
  std::int64_t size = 0;
  for (const ParameterSpec& parameter : parameters) size += parameter.size();
  return size * size_of(DType::float32);
}

ReplicatedParameters::ReplicatedParameters(std::vector<ParameterSpec> parameters, Communicator& tokens,
                                           MemoryLedger& ledger)
    : parameters_(std::move(parameters)), tokens_(tokens), ledger_(ledger) {
  for (const ParameterSpec& parameter : parameters_) {
    offsets_.push_back(size_);
    size_ += parameter.size();
  }
  values_ = ledger.allocate(Bucket::replicated_parameters, DType::float32, size_, 1);
  gradient_ = ledger.allocate(Bucket::sharded_gradients, DType::float32, size_, 1);
  fill(values_, 0.0f);
  fill(gradient_, 0.0f);
}

ConstTensorView ReplicatedParameters::parameter(std::size_t index) const {
  const ParameterSpec& spec = parameters_[index];
  return values_.view().rows_from(offsets_[index], spec.size()).reshaped(spec.rows, spec.columns);
}

TensorView ReplicatedParameters::gradient(std::size_t index) {
  if (!pending_.allocated()) {
    pending_ = ledger_.allocate(Bucket::unsharded_gradients, DType::float32, size_, 1);
    fill(pending_, 0.0f);
  }
  const ParameterSpec& spec = parameters_[index];
  return pending_.view().rows_from(offsets_[index], spec.size()).reshaped(spec.rows, spec.columns);
}

void ReplicatedParameters::reduce_gradient() {
  require(pending_.allocated(), "a reduction follows a weight gradient");
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (has_nonfinite(gradient(i))) {
      fail("the gradient of {} holds a NaN or an infinity on this rank, before its reduction", parameters_[i].name);
    }
  }
  tokens_.all_reduce(pending_);
  add(pending_, gradient_);
  pending_.reset();
}

void ReplicatedParameters::begin_step() { fill(gradient_, 0.0f); }

std::vector<OwnedRows> ReplicatedParameters::owned_rows() {
  std::vector<OwnedRows> owned;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterSpec& spec = parameters_[i];
    const auto begin = static_cast<std::size_t>(offsets_[i]), count = static_cast<std::size_t>(spec.size());
    owned.push_back({&spec, spec.row_begin, spec.rows, values_.as<float>().subspan(begin, count),
                     gradient_.as<float>().subspan(begin, count), offsets_[i]});
  }
  return owned;
}

}  // namespace weft
