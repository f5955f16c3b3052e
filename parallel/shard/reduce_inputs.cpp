#include "parallel/shard/reduce_inputs.h"

namespace weft {

void ReduceInputs::put(Tensor input, const void* owner, std::size_t number) {
  input.release_on(reduce_);
  inputs_.push_back({std::move(input), reduce_.record(), owner, number});
  retire_until(limit_);
}

void ReduceInputs::retire_until(int inputs) {
  while (!inputs_.empty() && static_cast<int>(inputs_.size()) > inputs) {
    retired_ = std::move(inputs_.front().reduced);
    inputs_.pop_front();
  }
}

void ReduceInputs::wait_for(const void* owner, std::size_t number) {
  for (std::size_t left = inputs_.size(); left > 0; --left) {
    if (inputs_[left - 1].owner != owner || inputs_[left - 1].number != number) continue;
    retire_until(static_cast<int>(inputs_.size() - left));
    break;
  }
  compute_.wait(retired_);
}

void ReduceInputs::finish() {
  inputs_.clear();
  retired_ = nullptr;
}

}  // namespace weft
