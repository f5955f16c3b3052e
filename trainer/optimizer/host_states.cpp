#include "trainer/optimizer/host_states.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

std::int64_t place_in(ConstTensorView array, ConstTensorView part) {
  return (part.data() - array.data()) / size_of(array.dtype());
}

// Elements [begin, begin + count) of a run.
UpdateRows part_of(UpdateRows run, std::int64_t begin, std::int64_t count) {
  const auto part = [&](auto view) { return view.reshaped(view.size(), 1).rows_from(begin, count); };
  run.parameters = part(run.parameters);
  run.gradients = part(run.gradients);
  run.first_state = part(run.first_state);
  run.second_state = part(run.second_state);
  run.first_index += static_cast<std::uint64_t>(begin);
  return run;
}

void copy(Stream& stream, ConstTensorView from, TensorView to) {
  stream.device().copy(stream, from.data(), to.data(), from.bytes());
}

}  // namespace

void HostStates::add(TensorView first, TensorView second, std::span<const UpdateRows> rows) {
  for (std::int64_t begin = 0; begin < first.rows(); begin += chunk_elements_) {
    const std::int64_t size = std::min(chunk_elements_, first.rows() - begin);
    Chunk chunk{{first.rows_from(begin, size), second.rows_from(begin, size)}, {}, nullptr};
    for (const UpdateRows& run : rows) {
      if (run.gradients.empty()) continue;
      const std::int64_t place = place_in(first, run.first_state);
      require(place_in(second, run.second_state) == place, "both states of a run lie at the same place");
      const std::int64_t from = std::max(place, begin), to = std::min(place + run.parameters.size(), begin + size);
      if (from < to) chunk.rows.push_back(part_of(run, from - place, to - from));
    }
    if (!chunk.rows.empty()) chunks_.push_back(std::move(chunk));
    const std::int64_t bytes = host_chunk_bytes(size, first.dtype());
    if (buffers_.front().bytes() >= bytes) continue;
    for (Tensor& buffer : buffers_) {
      buffer.reset();
      buffer = ledger_.allocate(Bucket::optimizer_state, DType::bfloat16, bytes / size_of(DType::bfloat16), 1);
    }
  }
}

std::array<TensorView, 2> HostStates::buffer_of(std::size_t chunk) {
  const TensorView whole = buffers_[chunk % buffers_.size()];
  const TensorView& state = chunks_[chunk].states.front();
  const std::int64_t second = host_chunk_bytes(state.rows(), state.dtype()) / 2;
  return {TensorView(whole.data(), state.dtype(), state.rows(), 1),
          TensorView(whole.data() + second, state.dtype(), state.rows(), 1)};
}

void HostStates::make_update(std::size_t chunk, const OptimizerKernels& kernels, const std::vector<UpdateRule>& rules) {
  const auto buffer = buffer_of(chunk);
  std::vector<UpdateRows> rows = chunks_[chunk].rows;
  for (UpdateRows& run : rows) {
    const std::int64_t place = place_in(chunks_[chunk].states.front(), run.first_state);
    run.first_state = buffer[0].rows_from(place, run.parameters.size());
    run.second_state = buffer[1].rows_from(place, run.parameters.size());
  }
  chunks_[chunk].update = kernels.make_update(lanes_[Lane::compute], ledger_, std::move(rows), rules);
}

void HostStates::run(const OptimizerKernels& kernels, std::span<const GroupStep> groups,
                     const std::vector<UpdateRule>& rules, ConstTensorView gradient_scale) {
  Stream &compute = lanes_[Lane::compute], &arriving = lanes_[Lane::from_host], &leaving = lanes_[Lane::to_host];
  arriving.wait_for(compute);
  leaving.wait_for(compute);
  std::array<Fence, host_chunks_on_device> left = {};  // by buffer: its last chunk is back
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    Chunk& chunk = chunks_[c];
    if (chunk.update == nullptr) make_update(c, kernels, rules);
    const auto buffer = buffer_of(c);
    Fence& free = left[c % left.size()];
    arriving.wait(free);
    for (std::size_t state = 0; state < buffer.size(); ++state) copy(arriving, chunk.states[state], buffer[state]);
    compute.wait_for(arriving);
    chunk.update->run(compute, groups, gradient_scale, {});
    leaving.wait_for(compute);
    for (std::size_t state = 0; state < buffer.size(); ++state) copy(leaving, buffer[state], chunk.states[state]);
    free = leaving.record();
  }
  compute.wait_for(leaving);
}

}  // namespace weft
