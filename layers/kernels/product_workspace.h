// Workspace of matrix products on a GPU, allocated once. Known without a GPU, so that plans can count it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// Number of additional streams for independent products: products of experts are too small to fill a GPU alone.
inline constexpr std::size_t product_side_streams = 4;
// Workspace of each stream in bytes, 256-byte aligned: NVIDIA's recommendation for Hopper and later.
inline constexpr std::int64_t product_workspace_bytes = 32 << 20;

}  // namespace weft
