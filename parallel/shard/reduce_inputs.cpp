#include "parallel/shard/reduce_inputs.h"

namespace weft {

void ReduceInputs::put(Tensor input) {
  input.release_on(reduce_);
  inputs_.push_back({std::move(input), reduce_.record()});
  retire_until(limit_);
}

void ReduceInputs::retire_until(int inputs) {
  while (!inputs_.empty() && static_cast<int>(inputs_.size()) > inputs) {
    retired_ = std::move(inputs_.front().reduced);
    inputs_.pop_front();
  }
}

void ReduceInputs::finish() {
  inputs_.clear();
  retired_ = nullptr;
}

}  // namespace weft
