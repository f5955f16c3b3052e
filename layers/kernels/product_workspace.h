// What matrix products on a GPU take once, for good: known without one, so that it can be planned for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// Products of experts are too small to fill a GPU alone, so independent ones run on this many streams more.
inline constexpr std::size_t product_side_streams = 4;
// For each stream, 256-byte aligned: what NVIDIA recommends for Hopper and later.
inline constexpr std::int64_t product_workspace_bytes = 32 << 20;

}  // namespace weft
