#include "trainer/rank/host_activations.h"

namespace weft {

HostActivations::Block HostActivations::block_of(std::int64_t bytes) {
  auto found = free_.extract(bytes);
  if (!found.empty()) return std::move(found.mapped());
  constexpr DType unit = DType::bfloat16;
  return {host_.allocate(Bucket::activations, unit, bytes / size_of(unit), 1), nullptr};
}

void HostActivations::offload(Key key, std::vector<Tensor*> kept) {
  Away away;
  std::int64_t bytes = 0;
  for (Tensor* tensor : kept) {
    away.parts.push_back({tensor, tensor->dtype(), tensor->rows(), tensor->columns(), bytes, {}});
    bytes += tensor->bytes();
  }
  away.block = block_of(bytes);
  Stream& leaving = lanes_[Lane::to_host];
  leaving.wait_for(lanes_[Lane::compute]);
  leaving.wait(away.block.read);
  for (Part& part : away.parts) {
    leaving.device().copy(leaving, part.home->view().data(), away.block.bytes.view().data() + part.offset,
                          part.home->bytes());
    part.leaving = std::move(*part.home);
  }
  away.written = leaving.record();
  require(away_.emplace(key, std::move(away)).second, "kept bytes leave once");
}

void HostActivations::wait_offload(Key key) {
  Away& away = away_.at(key);
  lanes_[Lane::compute].wait(away.written);
  for (Part& part : away.parts) part.leaving.reset();
}

void HostActivations::reload(Key key) {
  auto node = away_.extract(key);
  require(!node.empty(), "only bytes that have left come back");
  Away& away = node.mapped();
  Stream& arriving = lanes_[Lane::from_host];
  arriving.wait_for(lanes_[Lane::compute]);
  for (Part& part : away.parts) {
    Tensor tensor = device_.allocate_on(arriving, Bucket::activations, part.dtype, part.rows, part.columns);
    arriving.device().copy(arriving, away.block.bytes.view().data() + part.offset, tensor.view().data(),
                           tensor.bytes());
    tensor.release_on(lanes_[Lane::compute]);
    *part.home = std::move(tensor);
  }
  away.block.read = back_[key] = arriving.record();
  const std::int64_t bytes = away.block.bytes.bytes();
  free_.emplace(bytes, std::move(away.block));
}

void HostActivations::wait_reload(Key key) {
  const auto node = back_.extract(key);
  if (!node.empty()) lanes_[Lane::compute].wait(node.mapped());
}

}  // namespace weft
