#include "parallel/runtime/cuda/captured_regions.h"

#include <utility>

#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {

CapturedRegions::CapturedRegions(cudaStream_t stream) : stream_(stream) {
  WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&storage_, cudaStreamNonBlocking));
  for (cudaEvent_t* event : {&begun_, &allocated_}) {
    WEFT_CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
}

// After an error a region may be open. What was captured then never runs, and its storage goes.
CapturedRegions::~CapturedRegions() {
  if (open()) {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaEventRecord(allocated_, storage_);
    cudaStreamWaitEvent(stream_, allocated_, 0);
    cudaGetLastError();
  }
  for (const auto& [bytes, data] : released_) cudaFreeAsync(data, stream_);
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
  cudaEventDestroy(begun_);
  cudaEventDestroy(allocated_);
  cudaStreamDestroy(storage_);
}

void CapturedRegions::order(cudaStream_t after, cudaEvent_t event, cudaStream_t before) {
  WEFT_CUDA_CHECK(cudaEventRecord(event, before));
  WEFT_CUDA_CHECK(cudaStreamWaitEvent(after, event, 0));
}

void CapturedRegions::begin(std::int64_t key) {
  close();
  const auto [found, is_first] = graphs_.try_emplace(key, nullptr);
  if (is_first) return;
  // The pool then gives the region what the stream has freed.
  order(storage_, begun_, stream_);
  // Relaxed: libraries may ask for host memory.
  WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  open_ = &found->second;
}

void CapturedRegions::close() {
  if (!open() || failed_) return;
  failed_ = true;
  cudaGraph_t graph = nullptr;
  WEFT_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  order(stream_, allocated_, storage_);
  launch(graph);
  failed_ = false;
  open_ = nullptr;
  for (const auto& [bytes, data] : std::exchange(released_, {})) WEFT_CUDA_CHECK(cudaFreeAsync(data, stream_));
}

cudaError_t CapturedRegions::allocate(void** data, std::int64_t bytes, cudaMemPool_t pool) {
  if (const auto found = released_.find(bytes); found != released_.end()) {
    *data = found->second;
    released_.erase(found);
    return cudaSuccess;
  }
  return cudaMallocFromPoolAsync(data, static_cast<std::size_t>(bytes), pool, storage_);
}

void CapturedRegions::launch(cudaGraph_t graph) {
  cudaGraphExec_t& ready = *open_;
  cudaGraphExecUpdateResultInfo difference{};
  if (ready != nullptr && cudaGraphExecUpdate(ready, graph, &difference) != cudaSuccess) {
    cudaGetLastError();
    WEFT_CUDA_CHECK(cudaGraphExecDestroy(std::exchange(ready, nullptr)));
  }
  if (ready == nullptr) WEFT_CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
  WEFT_CUDA_CHECK(cudaGraphDestroy(graph));
  WEFT_CUDA_CHECK(cudaGraphLaunch(ready, stream_));
}

}  // namespace weft::cuda
