// A wait of one thread for another: one side changes a 32-bit word, and the other side watches the word.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

enum class WaitStyle : std::uint8_t {
  // Every rank has a core. The word usually changes within microseconds, so check it repeatedly before sleeping.
  spin,
  // More ranks than cores. The awaited rank may need this core.
  yield,
};

// Sleeps in the kernel (futex), so that a waiting rank uses no processor time. All functions are thread-safe.
class WaitWord {
 public:
  std::uint32_t load() const { return word_.load(std::memory_order_acquire); }
  // Both wake all sleepers.
  void store(std::uint32_t value);
  bool replace(std::uint32_t expected, std::uint32_t value);
  // Waits until the word differs from `value`, but at most 20 ms, so that the caller can check whether to wait further.
  // Returns whether the word differs.
  bool wait_while(std::uint32_t value, WaitStyle style);

 private:
  void wake();

  alignas(64) std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace weft
