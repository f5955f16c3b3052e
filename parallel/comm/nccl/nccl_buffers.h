// Memory that NCCL can read and write directly. The output of a gather can be registered with its communicator. The
// network and the switches between GPUs then access it without a copy through NCCL's own buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "parallel/runtime/cuda/device.h"

namespace weft {

// Serves a lane with blocks of NCCL's own allocator. A released block is kept and reused for requests of exactly the
// same bytes. The units of a model repeat, so nothing is allocated after the first unit of a kind. A block stays
// registered (NcclHandle::reach) as long as its communicators live. The price is memory: the blocks of one size never
// serve another size.
class NcclBuffers final : public cuda::BlockSource {
 public:
  // Created before the streams of `lane`. Outlives these streams and all communicators that know of it.
  NcclBuffers(Device& device, std::string lane);
  ~NcclBuffers() override;
  NcclBuffers(const NcclBuffers&) = delete;
  NcclBuffers& operator=(const NcclBuffers&) = delete;

  void* allocate(std::int64_t bytes) override;
  void release(void* data, std::int64_t bytes) override { free_.put(data, bytes); }
  std::int64_t system_allocations() const override { return static_cast<std::int64_t>(blocks_.size()); }

  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  // The block that contains `address`, or nothing.
  std::optional<Block> block_of(const void* address) const;

 private:
  Device& device_;
  const std::string lane_;
  std::map<const std::byte*, std::size_t> blocks_;  // bytes by address of the block
  FreeBlocks free_;
};

}  // namespace weft
