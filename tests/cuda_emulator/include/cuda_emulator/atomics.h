// Atomics. Threads of a block take turns and change only while one waits, so plain arithmetic is atomic. Blocks and
// warps run in a seeded order. A sum of floats differs from seed to seed, as it does from run to run on the device.
#pragma once

namespace weft::cuda_emulator::device {

template <typename T, typename Update>
T exchange(T* address, Update update) {
  const T old = *address;
  *address = update(old);
  return old;
}

}  // namespace weft::cuda_emulator::device

#define WEFT_EMULATED_ATOMIC(name, T, expression)                                                      \
  inline T name(T* address, T value) {                                                                 \
    return weft::cuda_emulator::device::exchange(address, [value](T old) -> T { return expression; }); \
  }
#define WEFT_EMULATED_INTEGER_ATOMICS(T)                        \
  WEFT_EMULATED_ATOMIC(atomicAdd, T, old + value)               \
  WEFT_EMULATED_ATOMIC(atomicMin, T, old < value ? old : value) \
  WEFT_EMULATED_ATOMIC(atomicMax, T, old > value ? old : value) \
  WEFT_EMULATED_ATOMIC(atomicAnd, T, old& value)                \
  WEFT_EMULATED_ATOMIC(atomicOr, T, old | value)                \
  WEFT_EMULATED_ATOMIC(atomicXor, T, old ^ value)               \
  WEFT_EMULATED_ATOMIC(atomicExch, T, (static_cast<void>(old), value))
WEFT_EMULATED_INTEGER_ATOMICS(int)
WEFT_EMULATED_INTEGER_ATOMICS(unsigned)
WEFT_EMULATED_INTEGER_ATOMICS(unsigned long long)
WEFT_EMULATED_ATOMIC(atomicAdd, float, old + value)
WEFT_EMULATED_ATOMIC(atomicAdd, double, old + value)
WEFT_EMULATED_ATOMIC(atomicExch, float, (static_cast<void>(old), value))
WEFT_EMULATED_ATOMIC(atomicSub, int, old - value)
WEFT_EMULATED_ATOMIC(atomicSub, unsigned, old - value)
// Wrap to zero past `value`, the last of CUDA's counters ("the last block done").
WEFT_EMULATED_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
#undef WEFT_EMULATED_INTEGER_ATOMICS
#undef WEFT_EMULATED_ATOMIC

#define WEFT_EMULATED_COMPARE_AND_SWAP(T)                                                                          \
  inline T atomicCAS(T* address, T expected, T desired) {                                                          \
    return weft::cuda_emulator::device::exchange(address, [&](T old) { return old == expected ? desired : old; }); \
  }
WEFT_EMULATED_COMPARE_AND_SWAP(int)
WEFT_EMULATED_COMPARE_AND_SWAP(unsigned)
WEFT_EMULATED_COMPARE_AND_SWAP(unsigned long long)
#undef WEFT_EMULATED_COMPARE_AND_SWAP
