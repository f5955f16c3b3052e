#include "trainer/optimizer/optimizer_kernels.h"

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

}  // namespace weft
