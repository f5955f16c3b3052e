#include "processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>

#include "parallel/runtime/error.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace weft::cuda_emulator {
namespace {

// A signalling NaN as float and as bfloat16.
constexpr std::uint64_t shared_poison = 0xFFA5FFA5FFA5FFA5u;
constexpr std::size_t shared_guard_words = 8;

// A cheap generator for the order of threads, of which a block needs a few numbers.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  std::uint64_t mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return mixed ^ (mixed >> 31);
}

}  // namespace

void Processor::run(const KernelLaunch& launch, std::uint64_t seed) {
  launch_ = &launch;
  seed_ = seed;
  blockDim = launch.threads;
  gridDim = launch.blocks;
  const std::uint32_t count = launch.threads.x * launch.threads.y * launch.threads.z;
  threads_.resize(count);
  for (std::uint32_t thread = 0; thread < count; ++thread) {
    threads_[thread].index = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
  }
  order_.resize(count);
  warps_.resize((count + 31) / 32);
  warp_order_.resize(warps_.size());
  std::iota(warp_order_.begin(), warp_order_.end(), 0u);
  const std::size_t shared_words = (launch.shared_bytes + 7) / 8;
  shared_storage_.resize(shared_words + shared_guard_words + 1);
  shared_ = shared_storage_.data();
  if (reinterpret_cast<std::uintptr_t>(shared_) % 16 != 0) shared_ = shared_storage_.data() + 1;
  // A stride without a common divisor visits every block once.
  const std::uint64_t blocks = std::uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  std::uint64_t stride = next_random(seed_) % blocks | 1;
  while (std::gcd(stride, blocks) != 1) ++stride;
  std::uint64_t block = next_random(seed_) % blocks;
  for (std::uint64_t done = 0; done < blocks; ++done, block = (block + stride) % blocks) {
    blockIdx = {static_cast<unsigned>(block % gridDim.x), static_cast<unsigned>(block / gridDim.x % gridDim.y),
                static_cast<unsigned>(block / gridDim.x / gridDim.y)};
    run_block();
  }
}

void Processor::shuffle_threads() {
  for (std::size_t left = warp_order_.size(); left > 1; --left)
    std::swap(warp_order_[left - 1], warp_order_[next_random(seed_) % left]);
  const bool backwards = next_random(seed_) % 2 != 0;
  const auto count = static_cast<std::uint32_t>(threads_.size());
  std::size_t position = 0;
  for (const std::uint32_t warp : warp_order_) {
    const std::uint32_t begin = warp * 32, end = std::min(count, begin + 32);
    for (std::uint32_t lane = begin; lane < end; ++lane)
      order_[position++] = backwards ? end - 1 - (lane - begin) : lane;
  }
}

void Processor::run_block() {
  const auto count = static_cast<std::uint32_t>(threads_.size());
  for (Thread& thread : threads_) {
    thread.waits = Waits::no;
    thread.returned = false;
  }
  for (std::uint32_t warp = 0; warp < warps_.size(); ++warp) {
    const std::uint32_t lanes = std::min(32u, count - warp * 32);
    warps_[warp] = {lanes == 32 ? ~0u : (1u << lanes) - 1, 0, 0};
  }
  shuffle_threads();
  auto* words = static_cast<std::uint64_t*>(shared_);
  const std::size_t shared_words = (launch_->shared_bytes + 7) / 8;
  std::fill_n(words, shared_words + shared_guard_words, shared_poison);
  ready_.clear();
  ready_head_ = next_ = returned_ = at_barrier_ = 0;
  votes_ = 0;
  try {
    while (returned_ < count) {
      if (ready_head_ < ready_.size()) {
        current_ = ready_[ready_head_++];
        threadIdx = threads_[current_].index;
        threads_[current_].fiber->resume();
      } else if (next_ < count) {
        if (idle_.empty()) {
          fibers_.push_back(std::make_unique<Fiber>(fibers_.size(), [this](Fiber& fiber) { work(fiber); }));
          idle_.push_back(fibers_.back().get());
        }
        Fiber* fiber = idle_.back();
        idle_.pop_back();
        fiber->resume();
      } else {
        fail_deadlock();
      }
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    }
    if (std::any_of(words + shared_words, words + shared_words + shared_guard_words,
                    [](std::uint64_t word) { return word != shared_poison; }))
      fail("{} wrote behind its {} bytes of dynamic shared memory", place(), launch_->shared_bytes);
  } catch (...) {
    // Threads that still wait are given up: destroying their fibers unwinds them.
    idle_.clear();
    fibers_.clear();
    error_ = nullptr;
    throw;
  }
}

void Processor::work(Fiber& fiber) {
  for (;;) {
    // Woken threads go first, so that a kernel with warp collectives alone needs few stacks.
    while (!error_ && ready_head_ == ready_.size() && next_ < order_.size()) start_thread(fiber, order_[next_++]);
    idle_.push_back(&fiber);
    fiber.suspend();
  }
}

void Processor::start_thread(Fiber& fiber, std::uint32_t thread) {
  current_ = thread;
  threadIdx = threads_[thread].index;
  threads_[thread].fiber = &fiber;
  try {
    launch_->thread();
  } catch (const std::exception&) {
    error_ = std::current_exception();
    return;
  }
  // Between its start and here other threads have run; this fiber is the one of `thread` all the time.
  threads_[thread].returned = true;
  warps_[thread / 32].returned |= 1u << thread % 32;
  ++returned_;
}

void Processor::suspend() {
  threads_[current_].fiber->suspend();
}

void Processor::wake(std::uint32_t thread) {
  threads_[thread].waits = Waits::no;
  if (ready_head_ == ready_.size()) {
    ready_.clear();
    ready_head_ = 0;
  }
  ready_.push_back(thread);
}

int Processor::barrier(device::BlockVote vote, int predicate) {
  const auto count = static_cast<std::uint32_t>(threads_.size());
  votes_ += predicate != 0;
  if (++at_barrier_ < count) {
    threads_[current_].waits = Waits::barrier;
    suspend();
  } else {
    vote_result_ = votes_;
    votes_ = 0;
    at_barrier_ = 0;
    const std::uint32_t last = current_;
    const bool backwards = next_random(seed_) % 2 != 0;
    for (std::uint32_t position = 0; position < count; ++position) {
      const std::uint32_t thread = order_[backwards ? count - 1 - position : position];
      if (thread != last) wake(thread);
    }
  }
  switch (vote) {
    case device::BlockVote::count:
      return vote_result_;
    case device::BlockVote::all:
      return vote_result_ == static_cast<int>(count);
    case device::BlockVote::any:
      return vote_result_ != 0;
    case device::BlockVote::none:
      break;
  }
  return 0;
}

std::uint32_t Processor::active_lanes() const {
  const Warp& warp = warps_[current_ / 32];
  return warp.existing & ~warp.returned;
}

}  // namespace weft::cuda_emulator
