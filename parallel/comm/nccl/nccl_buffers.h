// Memory that NCCL can read and write in place: what a gather writes to can be registered with its communicator, so
// that the network and the switches between GPUs reach it without a copy through NCCL's own buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/cuda/device.h"

namespace weft {

// Serves a lane with blocks of NCCL's own allocator. A block that is given back is kept and given out again to whoever
// asks for exactly as many bytes: the units of a model repeat, so after the first of a kind nothing is allocated, and a
// block stays registered (NcclHandle::reach) for as long as its communicators live. The price is memory: what one size
// needs at most is never lent to another.
class NcclBuffers final : public cuda::BlockSource {
 public:
  // Made before the streams of `lane`, and outlives them and all communicators that know of it.
  NcclBuffers(Device& device, std::string lane);
  ~NcclBuffers() override;
  NcclBuffers(const NcclBuffers&) = delete;
  NcclBuffers& operator=(const NcclBuffers&) = delete;

  void* allocate(std::int64_t bytes) override;
  void release(void* data, std::int64_t bytes) override { free_[bytes].push_back(data); }
  std::int64_t system_allocations() const override { return static_cast<std::int64_t>(blocks_.size()); }

  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  // The block in which `address` lies, or nothing.
  std::optional<Block> block_of(const void* address) const;

 private:
  Device& device_;
  const std::string lane_;
  std::map<const std::byte*, std::size_t> blocks_;   // bytes by beginning
  std::map<std::int64_t, std::vector<void*>> free_;  // by bytes
};

}  // namespace weft
