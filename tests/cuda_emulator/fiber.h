// A stack of its own for a thread of a block: it can stop in the middle of a kernel and go on later. Kept and used
// again from block to block.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace weft::cuda_emulator {

class Fiber {
 public:
  // `body` runs on the fiber at the first resume() and never returns. It lets exceptions that are no std::exception
  // pass, by which a fiber is unwound. `number` counts the fibers of a pool.
  Fiber(std::size_t number, std::function<void(Fiber&)> body);
  // Unwinds what the fiber was in the middle of.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Called outside: runs the fiber until it suspends.
  void resume();
  // Called on the fiber: goes back to whoever resumed it.
  void suspend();

 private:
  // Tell the sanitizers of a change of stacks, after coming to the fiber and before leaving it.
  void arrived();
  void depart(void** fake_stack);

  std::function<void(Fiber&)> body_;
  void* stack_ = nullptr;
  boost::context::fiber inside_, outside_;
  // For the sanitizers.
  void* own_fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  std::size_t outside_size_ = 0;
  void *own_thread_ = nullptr, *outside_thread_ = nullptr;
  bool leaving_ = false;
};

}  // namespace weft::cuda_emulator
