#include "trainer/optimizer/optimizer.h"

namespace weft {

void Optimizer::add(const std::vector<OwnedRows>& rows, std::int64_t shard_size) {
  require(update_ == nullptr, "rows are added before the first step");
  TensorView moments[2];
  for (TensorView& moment : moments) {
    moments_.push_back(ledger_.allocate(Bucket::optimizer_state, DType::float32, shard_size, 1));
    moment = moments_.back();
    fill(stream_, moment, 0.0f);
  }
  for (const OwnedRows& owned : rows) {
    const std::int64_t size = owned.values.size();
    rows_.push_back({owned.values, owned.gradients, moments[0].rows_from(owned.offset, size),
                     moments[1].rows_from(owned.offset, size), owned.parameter->columns > 1});
  }
}

void Optimizer::step(double learning_rate, std::int64_t step, ConstTensorView gradient_scale) {
  const PhaseClock::Scope scope(clock_, Phase::optimizer, stream_);
  if (update_ == nullptr) update_ = kernels_.make_adamw(stream_, ledger_, rows_);
  update_->run(stream_, {learning_rate, config_.beta1, config_.beta2, config_.eps, config_.weight_decay, step},
               gradient_scale);
}

}  // namespace weft
