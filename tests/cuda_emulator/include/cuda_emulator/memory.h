// Loads and stores with a cache hint. The hint means nothing here; the alignment that the device demands is checked.
#pragma once

#include <cstdint>

#include "cuda_emulator/threads.h"

namespace weft::cuda_emulator::device {

template <typename T>
void check_alignment(const T* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) trap("misaligned address");
}

}  // namespace weft::cuda_emulator::device

#define WEFT_EMULATED_LOAD(name)                           \
  template <typename T>                                    \
  T name(const T* address) {                               \
    weft::cuda_emulator::device::check_alignment(address); \
    return *address;                                       \
  }
#define WEFT_EMULATED_STORE(name)                          \
  template <typename T>                                    \
  void name(T* address, T value) {                         \
    weft::cuda_emulator::device::check_alignment(address); \
    *address = value;                                      \
  }
WEFT_EMULATED_LOAD(__ldg)
WEFT_EMULATED_LOAD(__ldca)
WEFT_EMULATED_LOAD(__ldcg)
WEFT_EMULATED_LOAD(__ldcs)
WEFT_EMULATED_LOAD(__ldcv)
WEFT_EMULATED_LOAD(__ldlu)
WEFT_EMULATED_STORE(__stcg)
WEFT_EMULATED_STORE(__stcs)
WEFT_EMULATED_STORE(__stwb)
WEFT_EMULATED_STORE(__stwt)
#undef WEFT_EMULATED_LOAD
#undef WEFT_EMULATED_STORE
