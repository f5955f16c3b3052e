// Warp collectives. A lane waits until all lanes that its mask names have come to a collective of the same kind with
// the same mask. When that can no longer happen the kernel ends with an error.
#pragma once

#include <cstdint>
#include <cstring>

namespace weft::cuda_emulator::device {

enum class WarpOperation : std::uint8_t {
  sync,
  shuffle_index,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  ballot,
  any,
  all,
  match_any,
  add,
  min_signed,
  max_signed,
  min_unsigned,
  max_unsigned,
  bitwise_and,
  bitwise_or,
  bitwise_xor,
};

// What one lane brings. `argument` and `width` are those of the shuffles.
struct WarpRequest {
  WarpOperation operation = WarpOperation::sync;
  std::uint32_t mask = 0;
  std::uint64_t value = 0;
  std::int32_t argument = 0, width = 32;
};

std::uint64_t warp_collective(const WarpRequest& request);
// Lanes of the running warp that have not returned.
std::uint32_t active_lanes();

template <typename T>
T shuffle(WarpOperation operation, unsigned mask, T value, int argument, int width) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  WarpRequest request{operation, mask, 0, argument, width};
  std::memcpy(&request.value, &value, sizeof value);
  const std::uint64_t bits = warp_collective(request);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint64_t vote(WarpOperation operation, unsigned mask, std::uint64_t value) {
  return warp_collective({operation, mask, value, 0, 32});
}

}  // namespace weft::cuda_emulator::device

#define WEFT_EMULATED_SHUFFLES(T)                                                             \
  inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {                    \
    using namespace weft::cuda_emulator::device;                                              \
    return shuffle(WarpOperation::shuffle_index, mask, value, lane, width);                   \
  }                                                                                           \
  inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {           \
    using namespace weft::cuda_emulator::device;                                              \
    return shuffle(WarpOperation::shuffle_up, mask, value, static_cast<int>(delta), width);   \
  }                                                                                           \
  inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {         \
    using namespace weft::cuda_emulator::device;                                              \
    return shuffle(WarpOperation::shuffle_down, mask, value, static_cast<int>(delta), width); \
  }                                                                                           \
  inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {           \
    using namespace weft::cuda_emulator::device;                                              \
    return shuffle(WarpOperation::shuffle_xor, mask, value, lane_mask, width);                \
  }
WEFT_EMULATED_SHUFFLES(int)
WEFT_EMULATED_SHUFFLES(unsigned)
WEFT_EMULATED_SHUFFLES(long)
WEFT_EMULATED_SHUFFLES(unsigned long)
WEFT_EMULATED_SHUFFLES(long long)
WEFT_EMULATED_SHUFFLES(unsigned long long)
WEFT_EMULATED_SHUFFLES(float)
WEFT_EMULATED_SHUFFLES(double)
#undef WEFT_EMULATED_SHUFFLES

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  weft::cuda_emulator::device::vote(weft::cuda_emulator::device::WarpOperation::sync, mask, 0);
}
inline unsigned __activemask() {
  return weft::cuda_emulator::device::active_lanes();
}

#define WEFT_EMULATED_VOTE(name, Result, Value, operation)                                               \
  inline Result name(unsigned mask, Value value) {                                                       \
    using namespace weft::cuda_emulator::device;                                                         \
    return static_cast<Result>(vote(WarpOperation::operation, mask, static_cast<std::uint64_t>(value))); \
  }
WEFT_EMULATED_VOTE(__ballot_sync, unsigned, int, ballot)
WEFT_EMULATED_VOTE(__any_sync, int, int, any)
WEFT_EMULATED_VOTE(__all_sync, int, int, all)
WEFT_EMULATED_VOTE(__match_any_sync, unsigned, int, match_any)
WEFT_EMULATED_VOTE(__match_any_sync, unsigned, unsigned, match_any)
WEFT_EMULATED_VOTE(__reduce_add_sync, int, int, add)
WEFT_EMULATED_VOTE(__reduce_add_sync, unsigned, unsigned, add)
WEFT_EMULATED_VOTE(__reduce_min_sync, int, int, min_signed)
WEFT_EMULATED_VOTE(__reduce_min_sync, unsigned, unsigned, min_unsigned)
WEFT_EMULATED_VOTE(__reduce_max_sync, int, int, max_signed)
WEFT_EMULATED_VOTE(__reduce_max_sync, unsigned, unsigned, max_unsigned)
WEFT_EMULATED_VOTE(__reduce_and_sync, unsigned, unsigned, bitwise_and)
WEFT_EMULATED_VOTE(__reduce_or_sync, unsigned, unsigned, bitwise_or)
WEFT_EMULATED_VOTE(__reduce_xor_sync, unsigned, unsigned, bitwise_xor)
#undef WEFT_EMULATED_VOTE
