// Views of dense row-major matrices. Every tensor of Weft is rows x columns: tokens x features, rows of a weight, or
// n x 1 for a vector. A view owns nothing; `Tensor` (ledger.h) owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "parallel/runtime/dtype.h"

namespace weft {

template <bool Const>
class BasicTensorView {
 public:
  using Byte = std::conditional_t<Const, const std::byte, std::byte>;
  using Void = std::conditional_t<Const, const void, void>;

  BasicTensorView() = default;
  BasicTensorView(Void* data, DType dtype, std::int64_t rows, std::int64_t columns)
      : data_(static_cast<Byte*>(data)), dtype_(dtype), rows_(rows), columns_(columns) {}
  // A mutable view reads as a const one.
  template <bool Other, typename = std::enable_if_t<Const && !Other>>
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : BasicTensorView(other.data(), other.dtype(), other.rows(), other.columns()) {}

  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t size() const { return rows_ * columns_; }
  std::int64_t bytes() const { return size() * size_of(dtype_); }
  bool empty() const { return size() == 0; }

  // The elements, which must be of type T.
  template <typename T>
  auto as() const {
    using Element = std::conditional_t<Const, const T, T>;
    require(dtype_ == dtype_of<T>, "a tensor is read as its own dtype");
    return std::span<Element>(reinterpret_cast<Element*>(data_), static_cast<std::size_t>(size()));
  }
  BasicTensorView rows_from(std::int64_t begin, std::int64_t count) const {
    require(begin >= 0 && count >= 0 && begin + count <= rows_, "a row slice lies inside its tensor");
    return BasicTensorView(data_ + begin * columns_ * size_of(dtype_), dtype_, count, columns_);
  }
  // The same elements under another shape of equal size.
  BasicTensorView reshaped(std::int64_t rows, std::int64_t columns) const {
    require(rows * columns == size(), "a reshape keeps the number of elements");
    return BasicTensorView(data_, dtype_, rows, columns);
  }

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::float32;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
};

using TensorView = BasicTensorView<false>;
using ConstTensorView = BasicTensorView<true>;

template <typename T>
TensorView view_of(std::span<T> elements, std::int64_t rows, std::int64_t columns) {
  require(static_cast<std::int64_t>(elements.size()) == rows * columns, "a view covers its elements exactly");
  return TensorView(elements.data(), dtype_of<T>, rows, columns);
}

}  // namespace weft
