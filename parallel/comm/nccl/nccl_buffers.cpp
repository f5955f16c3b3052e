#include "parallel/comm/nccl/nccl_buffers.h"

#include <nccl.h>

#include <utility>

#include "parallel/runtime/error.h"

namespace weft {

NcclBuffers::NcclBuffers(Device& device, std::string lane) : device_(device), lane_(std::move(lane)) {
  cuda::serve_lane(device_, lane_, this);
}

NcclBuffers::~NcclBuffers() {
  cuda::serve_lane(device_, lane_, nullptr);
  for (const auto& [data, bytes] : blocks_) ncclMemFree(const_cast<std::byte*>(data));
}

void* NcclBuffers::allocate(std::int64_t bytes) {
  void* data = free_.take(bytes);
  if (data != nullptr) return data;
  if (ncclMemAlloc(&data, static_cast<std::size_t>(bytes)) != ncclSuccess) return nullptr;
  blocks_[static_cast<const std::byte*>(data)] = static_cast<std::size_t>(bytes);
  return data;
}

std::optional<NcclBuffers::Block> NcclBuffers::block_of(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  auto block = blocks_.upper_bound(at);
  if (block == blocks_.begin()) return std::nullopt;
  --block;
  if (at >= block->first + block->second) return std::nullopt;
  return Block{const_cast<std::byte*>(block->first), block->second};
}

}  // namespace weft
