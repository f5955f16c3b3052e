// From the dtype of a tensor to the overload for its element type.
#pragma once

#include "parallel/runtime/dtype.h"

namespace weft {

// Calls body(float()) or body(bfloat16()); the argument carries only its type.
template <typename Body>
void with_element_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float32:
      body(float());
      break;
    case DType::bfloat16:
      body(bfloat16());
      break;
    default:
      fail("a kernel takes float32 or bfloat16, not {}", name_of(dtype));
  }
}

}  // namespace weft
