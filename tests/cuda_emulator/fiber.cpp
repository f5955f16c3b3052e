#include "fiber.h"

#include <sys/mman.h>

#include <boost/context/preallocated.hpp>
#include <utility>

#include "parallel/runtime/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace weft::cuda_emulator {
namespace {

constexpr std::size_t stack_bytes = std::size_t{64} << 10;
constexpr std::size_t guard_bytes = std::size_t{4} << 10;  // below the stack: an overflow faults

// The stack belongs to the Fiber; Boost has nothing to free.
struct KeepStack {
  void deallocate(boost::context::stack_context&) noexcept {}
};

// Thrown on a fiber that is destroyed in the middle of something.
struct Abandoned {};

}  // namespace

Fiber::Fiber(std::size_t number, std::function<void(Fiber&)> body) : body_(std::move(body)) {
  stack_ = mmap(nullptr, stack_bytes + guard_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack_ == MAP_FAILED) fail("the emulator cannot take a stack of {} bytes", stack_bytes);
  mprotect(stack_, guard_bytes, PROT_NONE);
  boost::context::stack_context context;
  // Stacks that all began at the same place of a page would share a few sets of the cache.
  const std::size_t shift = number % 61 * 64;
  context.size = stack_bytes - shift;
  context.sp = static_cast<std::byte*>(stack_) + guard_bytes + context.size;
#if defined(__SANITIZE_THREAD__)
  own_thread_ = __tsan_create_fiber(0);
#endif
  const auto enter = [this](boost::context::fiber&& outside) {
    outside_ = std::move(outside);
    arrived();
    try {
      if (!leaving_) body_(*this);
    } catch (const Abandoned&) {
    }
    depart(nullptr);
    return std::move(outside_);
  };
  inside_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(context.sp, context.size, context),
                                  KeepStack{}, enter);
}

Fiber::~Fiber() {
  // Not left to Boost's own unwinding, of which the sanitizers would not hear.
  leaving_ = true;
  resume();
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(own_thread_);
#endif
  munmap(stack_, stack_bytes + guard_bytes);
}

void Fiber::resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, static_cast<std::byte*>(stack_) + guard_bytes, stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  outside_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_thread_, 0);
#endif
  inside_ = std::move(inside_).resume();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
  depart(&own_fake_stack_);
  outside_ = std::move(outside_).resume();
  arrived();
  if (leaving_) throw Abandoned{};
}

void Fiber::arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_fake_stack_, &outside_stack_, &outside_size_);
#endif
}

void Fiber::depart([[maybe_unused]] void** fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
  // A fiber that comes to its end has no stack to come back to.
  __sanitizer_start_switch_fiber(leaving_ ? nullptr : fake_stack, outside_stack_, outside_size_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(outside_thread_, 0);
#endif
}

}  // namespace weft::cuda_emulator
