// A matrix on its way from one file to another: perhaps turned, perhaps in another dtype, in strips that are small
// beside it.
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

// All rows of the matrix, or of its transpose where it is `turned`, rounded to `to`, in order. Throws Error (request)
// naming `name` where a finite value is beyond what `to` can hold.
void stream_matrix(const MatrixBytes& matrix, bool turned, DType to, const std::string& name, const ByteSink& sink);

}  // namespace weft
