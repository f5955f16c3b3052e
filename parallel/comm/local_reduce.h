// Sums and maxima over the same elements of several buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/comm/communicator.h"

namespace weft {

// Elements `begin` to `begin + count` of `inputs` are combined in the order of the inputs and written to the front of
// each output. bfloat16 is combined in float32 and rounded once; int32 wraps; a NaN makes a maximum NaN. Outputs may be
// the places that are read: all inputs of a block are read before any output is written.
void reduce_elements(DType dtype, Reduce reduce, std::span<const std::byte* const> inputs, std::int64_t begin,
                     std::int64_t count, std::span<std::byte* const> outputs);

}  // namespace weft
