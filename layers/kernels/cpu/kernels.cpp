// The kernels of a few lines, and the table of all.
#include "layers/kernels/cpu/kernels.h"

#include <cstring>

#include "parallel/runtime/element_type.h"
#include "parallel/runtime/elementwise.h"

namespace weft::cpu {

void embedding_forward(KernelContext&, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y) {
  const std::int64_t row_bytes = table.columns() * size_of(table.dtype());
  std::byte* to = y.data();
  for (const std::int32_t id : ids.as<std::int32_t>()) {
    const std::int64_t row = id - row_begin;
    if (row >= 0 && row < table.rows()) {
      std::memcpy(to, table.data() + row * row_bytes, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
    to += row_bytes;
  }
}

void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable) {
  for (std::int64_t token = 0; token < dy.rows(); ++token) {
    const std::int64_t row = ids.as<std::int32_t>()[static_cast<std::size_t>(token)] - row_begin;
    if (row >= 0 && row < dtable.rows()) add(context.stream, dy.rows_from(token, 1), dtable.rows_from(row, 1));
  }
}

WEFT_MULTIVERSION void swiglu_forward(KernelContext&, ConstTensorView gate_up, ConstTensorView weights, TensorView y) {
  const float* weights_of_rows = weights.empty() ? nullptr : weights.as<float>().data();
  const std::int64_t rows = y.rows(), width = y.columns();
  with_element_type(
      y.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const T* from = gate_up.as<T>().data();
        T* to = y.as<T>().data();
        for (std::int64_t row = 0; row < rows; ++row, from += 2 * width, to += width) {
          const float weight = weights_of_rows != nullptr ? weights_of_rows[row] : 1.0f;
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) {
            const float gate = static_cast<float>(from[i]), up = static_cast<float>(from[width + i]);
            assign(to[i], gate * logistic(gate) * up * weight);
          }
        }
      });
}

// silu'(g) = s + g s (1 - s) with s = logistic(g). Each element is read before its gradient overwrites it.
WEFT_MULTIVERSION void swiglu_backward(KernelContext&, ConstTensorView dy, ConstTensorView gate_up,
                                       ConstTensorView weights, TensorView dgate_up, TensorView dweights) {
  const float* weights_of_rows = weights.empty() ? nullptr : weights.as<float>().data();
  const std::int64_t rows = dy.rows(), width = dy.columns();
  with_element_type(
      dy.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const T *dy_row = dy.as<T>().data(), *from = gate_up.as<T>().data();
        T* to = dgate_up.as<T>().data();
        for (std::int64_t row = 0; row < rows; ++row, dy_row += width, from += 2 * width, to += 2 * width) {
          const float weight = weights_of_rows != nullptr ? weights_of_rows[row] : 1.0f;
          if (weights_of_rows != nullptr) {
            dweights.as<float>()[row] = lane_sum(
                width, [=](std::int64_t i) __attribute__((always_inline)) {
                  const float gate = static_cast<float>(from[i]);
                  return static_cast<float>(dy_row[i]) * (gate * logistic(gate) * static_cast<float>(from[width + i]));
                });
          }
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) {
            const float gate = static_cast<float>(from[i]), up = static_cast<float>(from[width + i]);
            const float gradient = static_cast<float>(dy_row[i]) * weight;
            const float s = logistic(gate);
            const float silu = gate * s;
            assign(to[i], gradient * up * (s + silu * (1.0f - s)));
            assign(to[width + i], gradient * silu);
          }
        }
      });
}

}  // namespace weft::cpu

namespace weft {

LayerKernels cpu_layer_kernels() {
#define WEFT_KERNEL_OF_CPU(name) .name = cpu::name,
  return {.attention = cpu::attention_kernels, WEFT_FOR_LAYER_KERNELS(WEFT_KERNEL_OF_CPU)};
}

}  // namespace weft
