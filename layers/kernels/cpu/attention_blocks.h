// Attention works on one block of scores at a time: some rows of one query head against some keys. The library computes
// the products of a block; the functions here process its rows in between.
#pragma once

#include <algorithm>

#include "layers/kernels/attention.h"
#include "layers/kernels/cpu/kernels.h"

namespace weft {

// Narrow query blocks waste little on the masked side of the diagonal; wide key blocks make few, large products.
inline constexpr std::int64_t query_block = 64;
inline constexpr std::int64_t key_block = 256;

// Keys that the queries of a stripe see: those of the rule, as far as they are of a query's own document.
struct VisibleKeys {
  FirstKey rule;
  const std::int32_t* document_begins = nullptr;  // by row of the stripe; null: each sequence is one document

  std::int64_t first(std::int64_t position, std::int64_t row) const {
    const std::int64_t first = rule(position);
    return document_begins == nullptr ? first : std::max<std::int64_t>(first, document_begins[row]);
  }
};

// Row r, the query at position `first_row + r`, sees the columns from `hidden(r)` to its own position. It sees none if
// the block ends before its first key or begins behind its position.
struct ScoreBlock {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_column = 0, columns = 0;
  VisibleKeys keys;
  bool first = false;  // of its stripe

  std::int64_t hidden(std::int64_t row) const {
    return std::clamp<std::int64_t>(keys.first(first_row + row, row) - first_column, 0, columns);
  }
  std::int64_t visible(std::int64_t row) const {
    return std::clamp<std::int64_t>(first_row + row + 1 - first_column, 0, columns);
  }
};

// Calls `visit` with the blocks of one stripe of queries, keys ascending.
template <typename Visit>
void for_each_block(std::int64_t first_row, std::int64_t rows, VisibleKeys keys, Visit visit) {
  const std::int64_t begin = keys.first(first_row, 0) / key_block * key_block;
  for (std::int64_t column = begin; column < first_row + rows; column += key_block) {
    visit(ScoreBlock{first_row, rows, column, std::min(key_block, first_row + rows - column), keys, column == begin});
  }
}

// Elements in the dtype of q, k and v.
template <typename Void>
struct ElementPointer {
  template <typename T>
  ElementPointer(T* elements)  // NOLINT(google-explicit-constructor)
      : dtype(dtype_of<std::remove_const_t<T>>), data(elements) {}
  template <typename T>
  WEFT_INLINE auto as() const {
    return static_cast<std::conditional_t<std::is_const_v<Void>, const T, T>*>(data);
  }
  DType dtype;
  Void* data;
};
using Elements = ElementPointer<void>;
using ConstElements = ElementPointer<const void>;

// Online softmax of a stripe, key block by key block (Milakov and Gimelshein 2018): largest score and sum of
// exponentials so far, for each row.
struct RunningSoftmax {
  float* maximum = nullptr;
  float* sum = nullptr;
};

// Replaces raw scores by exp(scale * (score - maximum)), zero for keys that a row does not see. Rescales the result of
// earlier blocks in `out` [rows, value_dim] to the new maximum. `scores` are overwritten; `probabilities` may be the
// same memory.
void softmax_block(const ScoreBlock& block, float scale, float* scores, Elements probabilities, RunningSoftmax softmax,
                   float* out, std::int64_t value_dim);

// probabilities = exp(scale * score - log_sum_exp) and dscores = scale * probability * (dprobability - product), zero
// for keys that a row does not see; `product` is sum(dout * out) of the row. `scores` are overwritten. Results may lie
// on `scores` and `dprobabilities`.
struct RowStatistics {
  const float* log_sum_exp = nullptr;  // row r at r * stride
  std::int64_t stride = 0;
  const float* product = nullptr;
};
void gradient_block(const ScoreBlock& block, float scale, RowStatistics rows, float* scores,
                    const float* dprobabilities, Elements probabilities, Elements dscores);

// to[r] = from[r] * factors[r] for rows of `columns` elements; null factors are ones. `from` is dense.
void store_rows(const float* from, const float* factors, std::int64_t rows, std::int64_t columns, Elements to,
                std::int64_t stride);
// products[r] = sum over the row of a * b.
void multiply_rows(ConstElements a, std::int64_t a_stride, ConstElements b, std::int64_t b_stride, std::int64_t rows,
                   std::int64_t columns, float* products);

template <typename T>
StridedMatrix<T> rows_from(StridedMatrix<T> matrix, std::int64_t row) {
  return {matrix.data + row * matrix.stride, matrix.stride};
}

// c [m, n] = op(a) op(b) in float32. float32 factors may be strided; 16-bit factors are dense.
template <typename T>
void block_product(KernelContext& context, std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix<T> a,
                   Transpose transpose_a, StridedMatrix<T> b, Transpose transpose_b, float* c, bool accumulate) {
  if constexpr (dtype_of<T> == DType::float32) {
    strided_product(m, n, k, a, transpose_a, b, transpose_b, c, accumulate);
  } else {
    const auto view = [](StridedMatrix<T> matrix, Transpose transpose, std::int64_t rows, std::int64_t columns) {
      if (transpose == Transpose::yes) std::swap(rows, columns);
      return ConstTensorView(matrix.data, dtype_of<T>, rows, columns);
    };
    context.products.multiply(view(a, transpose_a, m, k), transpose_a, view(b, transpose_b, k, n), transpose_b,
                              TensorView(c, DType::float32, m, n), accumulate);
  }
}

// Workspace of one head that is a factor of products; without rows for float32, which is read in place.
template <typename T>
Tensor allocate_packed_head(KernelContext& context, std::int64_t rows, std::int64_t columns) {
  return context.ledger.allocate(Bucket::workspace, dtype_of<T>, dtype_of<T> == DType::float32 ? 0 : rows, columns);
}

// A block in the dtype of the products: the float32 block itself, or a second tensor.
template <typename T>
struct FactorBlock {
  FactorBlock(KernelContext& context, Tensor& block) {
    if constexpr (dtype_of<T> == DType::float32) {
      data = block.as<float>().data();
    } else {
      storage = context.ledger.allocate(Bucket::workspace, dtype_of<T>, block.rows(), block.columns());
      data = storage.as<T>().data();
    }
  }
  Tensor storage;
  T* data = nullptr;
};

}  // namespace weft
