#include "trainer/optimizer/optimizer_kernels.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/error.h"

namespace weft {

void check_rows(const UpdateRows& rows, UpdateRule rule) {
  const std::int64_t size = rows.parameters.size();
  const auto is_stored = [](DType dtype) { return dtype == DType::float32 || dtype == DType::bfloat16; };
  require(needs_of(rule) != Needs::whole_matrices, "rows are stepped element by element");
  require(rows.gradients.size() == size && rows.gradients.dtype() == DType::float32,
          "gradients are float32 and as many as the parameters");
  require(is_stored(rows.parameters.dtype()) && is_stored(rows.first_state.dtype()),
          "parameters and states are float32 or bfloat16");
  int states = 0;
  for (const TensorView& state : {rows.first_state, rows.second_state}) {
    if (state.empty()) break;
    require(state.size() == size && state.dtype() == rows.first_state.dtype(),
            "states have one dtype and are as many as the parameters");
    ++states;
  }
  require(
      (rows.second_state.empty() || states == 2) && (states == states_of(rule, 0.0) || states == states_of(rule, 1.0)),
      "rows have the states of their rule");
}

namespace {

// Fused operations are written out: the vector loop and its scalar rest must round in the same way. Otherwise an
// element's bits would depend on the place where a shard ends. `update` is null if another rank sends these rows.
template <typename Momentum, typename Update>
WEFT_INLINE void momentum_loop(float scale, float rate, const float* gradients, Momentum* momentum, Update update,
                               std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = scale * gradients[i];
    const float moved = std::fma(rate, static_cast<float>(momentum[i]), gradient);
    assign(momentum[i], moved);
    if constexpr (!std::is_null_pointer_v<Update>) assign(update[i], std::fma(rate, moved, gradient));
  }
}

template <typename Direction>
WEFT_INLINE void change_loop(float step_size, float decay, const Direction* direction, float* values,
                             std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] -= std::fma(decay, values[i], step_size * static_cast<float>(direction[i]));
  }
}
template <typename Momentum>
WEFT_INLINE void move_rows(float scale, const MuonMomentum& rows) {
  const float* gradients = rows.gradients.as<float>().data();
  Momentum* momentum = rows.momentum.as<Momentum>().data();
  const std::int64_t count = rows.momentum.size();
  if (rows.update.empty()) {
    momentum_loop(scale, rows.rate, gradients, momentum, nullptr, count);
  } else if (rows.update.dtype() == DType::bfloat16) {
    momentum_loop(scale, rows.rate, gradients, momentum, rows.update.as<bfloat16>().data(), count);
  } else {
    momentum_loop(scale, rows.rate, gradients, momentum, rows.update.as<float>().data(), count);
  }
}

WEFT_MULTIVERSION void momentum(Stream&, const MuonMomentum& rows) {
  const float scale = rows.gradient_scale.as<float>()[0];
  if (!std::isfinite(scale)) {
    std::fill_n(rows.update.data(), rows.update.bytes(), std::byte{0});
  } else if (rows.momentum.dtype() == DType::bfloat16) {
    move_rows<bfloat16>(scale, rows);
  } else {
    move_rows<float>(scale, rows);
  }
}

WEFT_MULTIVERSION void change(Stream&, const MuonChange& rows) {
  if (!std::isfinite(rows.gradient_scale.as<float>()[0])) return;
  float* values = rows.values.as<float>().data();
  if (rows.direction.dtype() == DType::bfloat16) {
    change_loop(rows.step_size, rows.decay, rows.direction.as<bfloat16>().data(), values, rows.values.size());
  } else {
    change_loop(rows.step_size, rows.decay, rows.direction.as<float>().data(), values, rows.values.size());
  }
}

}  // namespace

MuonKernels cpu_muon_kernels() {
  return {momentum, change};
}

}  // namespace weft
