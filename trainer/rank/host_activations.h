// Kept activations that wait in host memory for the backward. Copies run on Lane::to_host and Lane::from_host beside
// the computations of other segments. The host blocks of a step serve all later steps.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"

namespace weft {

class HostActivations {
 public:
  // By segment and microbatch.
  using Key = std::pair<int, int>;

  // `device` and `host` count the tensors and the blocks. All arguments outlive this.
  HostActivations(Lanes& lanes, MemoryLedger& device, MemoryLedger& host)
      : lanes_(lanes), device_(device), host_(host) {}

  // Queues copies of `kept` to the host, behind the work of the compute lane so far, and takes the tensors. They stay
  // where they are until reload() gives them back.
  void offload(Key key, std::vector<Tensor*> kept);
  // The compute lane waits for the copies; then the tensors leave device memory.
  void wait_offload(Key key);
  // Gives the tensors back, in new memory. Copies are queued behind the work of the compute lane so far.
  void reload(Key key);
  // Before the first use on the compute lane; nothing for bytes that were never away.
  void wait_reload(Key key);
  bool empty() const { return away_.empty() && back_.empty(); }

 private:
  struct Block {
    Tensor bytes;
    Fence read;  // the last reload from it
  };
  struct Part {
    Tensor* home = nullptr;
    DType dtype = DType::float32;
    std::int64_t rows = 0, columns = 0, offset = 0;  // offset in the block
    Tensor leaving = {};                             // until wait_offload()
  };
  struct Away {
    std::vector<Part> parts;
    Block block;
    Fence written;
  };
  Block block_of(std::int64_t bytes);

  Lanes& lanes_;
  MemoryLedger &device_, &host_;
  std::multimap<std::int64_t, Block> free_;  // by bytes
  std::map<Key, Away> away_;
  std::map<Key, Fence> back_;
};

}  // namespace weft
