// Checks the requirements that every device has, then calls the kernel of the stream's device.
#include "parallel/runtime/elementwise.h"

#include "parallel/runtime/device.h"
#include "parallel/runtime/element_type.h"

namespace weft {
namespace {

const ElementwiseKernels& kernels(Stream& stream) {
  return stream.device().elementwise();
}

}  // namespace

void cast(Stream& stream, ConstTensorView source, TensorView destination) {
  require(source.size() == destination.size(), "a cast keeps the number of elements");
  if (source.empty()) return;
  if (source.dtype() == destination.dtype()) {
    if (source.data() != destination.data()) {
      stream.device().copy(stream, source.data(), destination.data(), source.bytes());
    }
    return;
  }
  if (!is_compute_type(source.dtype()) || !is_compute_type(destination.dtype())) {
    fail("no cast from {} to {}", name_of(source.dtype()), name_of(destination.dtype()));
  }
  kernels(stream).cast(stream, source, destination);
}

void add(Stream& stream, ConstTensorView source, TensorView destination) {
  require(source.size() == destination.size(), "an addition keeps the number of elements");
  require(source.dtype() == destination.dtype() || destination.dtype() == DType::float32,
          "an addition does not narrow what is added");
  if (!source.empty()) kernels(stream).add(stream, source, destination);
}

void combine(Stream& stream, float factor, ConstTensorView source, float destination_factor, TensorView destination) {
  require(source.size() == destination.size(), "a combination keeps the number of elements");
  const bool known = source.dtype() == DType::float32 || source.dtype() == DType::bfloat16;
  require(source.dtype() == destination.dtype() && known, "float32 is combined with float32, bfloat16 with bfloat16");
  if (!source.empty()) kernels(stream).combine(stream, factor, source, destination_factor, destination);
}

void divide_by_root(Stream& stream, ConstTensorView square_sum, TensorView destination) {
  require(square_sum.dtype() == DType::float64 && square_sum.size() == 1 && destination.dtype() == DType::float32,
          "float32 is divided by the root of one float64");
  if (!destination.empty()) kernels(stream).divide_by_root(stream, square_sum, destination);
}

void fill(Stream& stream, TensorView destination, float value) {
  if (!destination.empty()) kernels(stream).fill(stream, destination, value);
}

void square_sum(Stream& stream, ConstTensorView source, TensorView sum) {
  require(source.dtype() == DType::float32 && sum.dtype() == DType::float64 && sum.size() == 1,
          "squares of float32 are summed into one float64");
  if (!source.empty()) kernels(stream).square_sum(stream, source, sum);
}

void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count) {
  require(source.dtype() == DType::float32 && count.dtype() == DType::int32 && count.size() == 1,
          "what is not finite in float32 is counted in one int32");
  if (!source.empty()) kernels(stream).count_nonfinite(stream, source, count);
}

void copy_columns(Stream& stream, ConstTensorView source, std::int64_t source_column, TensorView destination,
                  std::int64_t destination_column, std::int64_t columns) {
  require(source.rows() == destination.rows() && source.dtype() == destination.dtype(),
          "columns of equal rows are copied");
  require(source_column + columns <= source.columns() && destination_column + columns <= destination.columns(),
          "copied columns lie inside both tensors");
  if (source.rows() == 0 || columns == 0) return;
  kernels(stream).copy_columns(stream, source, source_column, destination, destination_column, columns);
}

void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs) {
  require(inputs.size() >= 2, "a reduction has at least two inputs");
  if (count > 0) kernels(stream).reduce_elements(stream, dtype, reduce, inputs, begin, count, outputs);
}

}  // namespace weft
