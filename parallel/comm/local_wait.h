// How a thread waits for another one: a 32-bit word that one side changes and the other watches.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

enum class WaitStyle : std::uint8_t {
  // Every rank has a core: the answer usually comes within microseconds, so look for it before sleeping.
  spin,
  // More ranks than cores: the rank that is waited for may need this very core.
  yield,
};

// Sleeps in the kernel (futex), so a waiting rank uses no processor time. Any thread may call anything.
class WaitWord {
 public:
  std::uint32_t load() const { return word_.load(std::memory_order_acquire); }
  // Both wake whoever sleeps.
  void store(std::uint32_t value);
  bool replace(std::uint32_t expected, std::uint32_t value);
  // Waits until the word differs from `value`, but at most 20 ms: then the caller looks whether waiting still
  // makes sense. Returns whether the word differs.
  bool wait_while(std::uint32_t value, WaitStyle style);

 private:
  void wake();

  alignas(64) std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace weft
