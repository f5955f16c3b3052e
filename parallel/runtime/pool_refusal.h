// Why a device refused an allocation, by the counters of its memory pool, and what to try first.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace weft {

// In bytes, after all work has ended and free blocks were given back.
struct PoolCounters {
  std::int64_t free = 0, total = 0;     // of the device
  std::int64_t reserved = 0, used = 0;  // by this rank's pool, and of that by its tensors
};

// The cause is fragmentation if enough is free, in pieces too small. It is the other programs if enough would be free
// without them. Else this rank's tensors leave too little.
inline std::string refusal_text(std::int64_t bytes, const PoolCounters& counters) {
  const std::int64_t in_pieces = counters.reserved - counters.used;
  const std::int64_t others = counters.total - counters.free - counters.reserved;
  const std::string text = fmt::format(
      "the GPU refused {} bytes: {} of its {} bytes are free, {} are held by this rank, {} of "
      "these in use",
      bytes, counters.free, counters.total, counters.reserved, counters.used);
  if (counters.free + in_pieces >= bytes) {
    return text +
           ". Enough is free, in pieces too small (fragmentation): units of one size leave fewer pieces "
           "(shard.wrap), and a smaller microbatch leaves more room";
  }
  if (counters.free + in_pieces + others >= bytes) {
    return text + fmt::format(
                      ". Other programs and the CUDA context hold {}: end those, or plan for less "
                      "(hardware.memory)",
                      others);
  }
  return text + ". weft plan CONFIG --explain names what fills it, and what makes the run fit";
}

}  // namespace weft
