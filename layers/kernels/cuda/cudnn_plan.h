// An attention graph (attention_graph.h) as an execution plan of cuDNN's backend API, one descriptor per tensor and per
// operation. Building a plan takes about half a second, because cuDNN compiles its kernel. Executing it takes
// microseconds on the host.
#pragma once

#include <cudnn.h>

#include <map>
#include <optional>
#include <source_location>
#include <string_view>
#include <variant>
#include <vector>

#include "layers/kernels/attention_graph.h"
#include "parallel/runtime/error.h"

namespace weft {

// Throws Error with the expression, the status and cuDNN's last error message.
void check_cudnn(cudnnStatus_t status, const char* expression,
                 std::source_location place = std::source_location::current());
#define WEFT_CUDNN(expression) ::weft::check_cudnn((expression), #expression)

// Owns one backend descriptor. `set` copies the values, `finalize` ends construction.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
  }
  void finalize();
  std::int64_t get_int64(cudnnBackendAttributeName_t name) const;

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

// The device of a plan: that of a handle, or a device described by its properties as JSON. The described device need
// not be present, but a plan for it cannot be executed without it.
class CudnnTarget {
 public:
  explicit CudnnTarget(cudnnHandle_t handle) : device_(handle) {}
  explicit CudnnTarget(std::string_view properties_json);

 private:
  friend class CudnnOperationGraph;
  friend class CudnnPlan;
  std::variant<cudnnHandle_t, CudnnDescriptor> device_;
};

// The graph in cuDNN's terms, and the engines that can run it.
class CudnnOperationGraph {
 public:
  CudnnOperationGraph(const AttentionGraph& graph, const CudnnTarget& target);

  // Engine configurations, the one expected to be fastest first. Empty if cuDNN has none for the graph. The engines
  // need libcuda.so.1, but no device.
  std::vector<CudnnDescriptor> engine_configurations() const;

 private:
  const CudnnTarget& target_;
  // Operations refer to descriptors, which must outlive them.
  std::vector<CudnnDescriptor> descriptors_;
  CudnnDescriptor operation_graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

// Device memory of the tensors that are neither virtual nor scalars.
using CudnnPointers = std::map<AttentionTensor, void*>;

// Not thread-safe; `target` must outlive it.
class CudnnPlan {
 public:
  // Uses engine number `engine` (from 0) of engine_configurations(), or if that is negative the first engine that can
  // be prepared. Throws Error if there is none.
  CudnnPlan(const AttentionGraph& graph, const CudnnTarget& target, int engine = -1);

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  // Queues the plan on the stream of `handle`. `pointers` has exactly the stored tensors of the graph, 16-byte aligned.
  // workspace [workspace_bytes] is 256-byte aligned and must stay valid until the work has run.
  void execute(cudnnHandle_t handle, const CudnnPointers& pointers, void* workspace) const;

 private:
  // Host values of the scalars, read when the plan is executed.
  struct Scalar {
    std::int64_t id = 0;
    std::variant<float, std::int32_t> value;
  };

  std::vector<std::int64_t> stored_;  // ids of the tensors with memory
  std::vector<Scalar> scalars_;
  // A plan refers to its engine, and the engine to the graph.
  CudnnOperationGraph operations_;
  std::optional<CudnnDescriptor> configuration_, plan_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace weft
