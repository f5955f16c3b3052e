#include "parallel/comm/local_wait.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace weft {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "the kernel sees the atomic as a plain 32-bit word");

// A failure of another rank is noticed after at most this time.
constexpr timespec wait_slice{.tv_sec = 0, .tv_nsec = 20'000'000};
// Measured on 2 cores: about 0.25 us per barrier with a core per rank, 2-4 us with 4 or 8 ranks.
constexpr int spins = 2000;
constexpr int yields = 20;

}  // namespace

void WaitWord::wake() {
  // Sequentially consistent on both sides: either wake() sees the sleeper, or the sleeper sees the new word.
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &word_, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}

void WaitWord::store(std::uint32_t value) {
  word_.store(value, std::memory_order_seq_cst);
  wake();
}

bool WaitWord::replace(std::uint32_t expected, std::uint32_t value) {
  if (!word_.compare_exchange_strong(expected, value, std::memory_order_seq_cst)) return false;
  wake();
  return true;
}

bool WaitWord::wait_while(std::uint32_t value, WaitStyle style) {
  if (style == WaitStyle::spin) {
    for (int i = 0; i < spins; ++i) {
      if (load() != value) return true;
      _mm_pause();
    }
  } else {
    for (int i = 0; i < yields; ++i) {
      if (load() != value) return true;
      sched_yield();
    }
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word_, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, &wait_slice, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return load() != value;
}

}  // namespace weft
