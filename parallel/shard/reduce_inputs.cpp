#include "parallel/shard/reduce_inputs.h"

namespace weft {

void ReduceInputs::put(Tensor input) {
  input.release_on(reduce_);
  inputs_.push_back({std::move(input), reduce_.record()});
  while (static_cast<int>(inputs_.size()) > limit_) {
    retired_ = std::move(inputs_.front().reduced);
    inputs_.pop_front();
  }
}

void ReduceInputs::finish() {
  inputs_.clear();
  retired_ = nullptr;
}

}  // namespace weft
