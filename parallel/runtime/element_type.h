// Selects the code for the element type of a tensor by its dtype.
#pragma once

#include "parallel/runtime/dtype.h"

namespace weft {

// Dtypes that layers compute in.
constexpr bool is_compute_type(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

// Calls body(float()), body(bfloat16()) or body(float16()); the argument carries only its type. With an always-inlined
// body, the inlined code belongs to the version of the WEFT_MULTIVERSION function around it.
template <typename Body>
WEFT_INLINE void with_element_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float32:
      return body(float());
    case DType::bfloat16:
      return body(bfloat16());
    case DType::float16:
      return body(float16());
    default:
      fail("float32, bfloat16 or float16 was expected, not {}", name_of(dtype));
  }
}

// As with_element_type, for every dtype that tensors are filled, reduced and sent in: those of layers, double and
// std::int32_t. `done` is the verb of the error message.
template <typename Body>
WEFT_INLINE void with_stored_type(DType dtype, const char* done, Body&& body) {
  if (is_compute_type(dtype)) return with_element_type(dtype, body);
  if (dtype == DType::float64) return body(double());
  if (dtype == DType::int32) return body(std::int32_t());
  fail("{} is not {}", name_of(dtype), done);
}

}  // namespace weft
