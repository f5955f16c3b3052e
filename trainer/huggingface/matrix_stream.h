// Copies a matrix from one file to another in small strips, optionally transposed and converted to another dtype.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "parallel/runtime/dtype.h"

namespace weft {

// float32, bfloat16 or float16; the bytes need not be aligned.
struct MatrixBytes {
  std::span<const std::uint8_t> bytes;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::float32;
};

using ByteSink = std::function<void(std::span<const std::uint8_t> bytes)>;

// Streams all rows of the matrix, or of its transpose if `turned`, in order and rounded to `to`. Throws Error (request)
// naming `name` if a finite value is out of the range of `to`.
void stream_matrix(const MatrixBytes& matrix, bool turned, DType to, const std::string& name, const ByteSink& sink);

}  // namespace weft
