// Regions of a stream's work that go to the device as one CUDA graph each.
//
// Work of an open region is captured. It is launched when the region is closed, at its end or earlier. Whatever needs a
// point in the stream (an event, a wait of the host) closes it, and work behind that is queued as ever. A capture
// allocates nothing, so storage of an open region comes from a stream of its own. Storage that it releases serves its
// later allocations of the same size, and is freed behind the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>

namespace weft::cuda {

// Belongs to the thread that queues work on `stream`, which outlives it.
class CapturedRegions {
 public:
  explicit CapturedRegions(cudaStream_t stream);
  ~CapturedRegions();
  CapturedRegions(const CapturedRegions&) = delete;
  CapturedRegions& operator=(const CapturedRegions&) = delete;

  bool open() const { return open_ != nullptr; }
  // The first region of a key is queued as ever: its kernels may have to be loaded. From the second on it is captured.
  // Its graph is that of the region before with other addresses, or a new one if other calls make it up.
  void begin(std::int64_t key);
  // Nothing if no region is open.
  void close();

  // Of an open region: storage from `pool`, as cudaMallocFromPoolAsync gives it; and what it releases.
  cudaError_t allocate(void** data, std::int64_t bytes, cudaMemPool_t pool);
  void release(void* data, std::int64_t bytes) { released_.emplace(bytes, data); }

 private:
  // Takes over `graph`.
  void launch(cudaGraph_t graph);
  static void order(cudaStream_t after, cudaEvent_t event, cudaStream_t before);

  cudaStream_t stream_, storage_ = nullptr;
  cudaEvent_t begun_ = nullptr, allocated_ = nullptr;
  std::map<std::int64_t, cudaGraphExec_t> graphs_;  // by key; null after the first region
  cudaGraphExec_t* open_ = nullptr;                 // that of the open region
  bool failed_ = false;                             // to close it: the first error counts, and tensors end after it
  std::multimap<std::int64_t, void*> released_;     // by bytes
};

}  // namespace weft::cuda
