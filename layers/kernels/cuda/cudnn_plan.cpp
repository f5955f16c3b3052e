#include "layers/kernels/cuda/cudnn_plan.h"

#include <array>
#include <iterator>
#include <utility>

namespace weft {

void check_cudnn(cudnnStatus_t status, const char* expression, std::source_location place) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 2048> words{};
  cudnnGetLastErrorString(words.data(), words.size());
  fail("{}:{}: {}: {}{}{}", place.file_name(), place.line(), expression, cudnnGetErrorString(status),
       words[0] == '\0' ? "" : ", ", words.data());
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  WEFT_CUDNN(cudnnBackendCreateDescriptor(type, &descriptor_));
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                          const void* values) {
  WEFT_CUDNN(cudnnBackendSetAttribute(descriptor_, name, type, count, values));
}

void CudnnDescriptor::finalize() {
  WEFT_CUDNN(cudnnBackendFinalize(descriptor_));
}

std::int64_t CudnnDescriptor::get_int64(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  WEFT_CUDNN(cudnnBackendGetAttribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &count, &value));
  return value;
}

CudnnTarget::CudnnTarget(std::string_view properties_json)
    : device_(CudnnDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)) {
  auto& properties = std::get<CudnnDescriptor>(device_);
  properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::ssize(properties_json),
                 properties_json.data());
  properties.finalize();
}

std::vector<CudnnDescriptor> CudnnOperationGraph::engine_configurations() const {
  std::vector<CudnnDescriptor> configurations;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph_);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (const auto* properties = std::get_if<CudnnDescriptor>(&target_.device_)) {
      heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties);
    }
    // A heuristic without an engine may report that as an error.
    if (cudnnBackendFinalize(heuristic.get()) != CUDNN_STATUS_SUCCESS) continue;
    std::int64_t available = 0, written = 0;
    WEFT_CUDNN(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        0, &available, nullptr));
    if (available == 0) continue;
    std::vector<cudnnBackendDescriptor_t> results;
    for (std::int64_t i = 0; i < available; ++i) {
      results.push_back(configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    }
    WEFT_CUDNN(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        available, &written, results.data()));
    for (; written < available; ++written) configurations.pop_back();
  }
  return configurations;
}

CudnnPlan::CudnnPlan(const AttentionGraph& graph, const CudnnTarget& target, int engine) : operations_(graph, target) {
  for (const GraphTensor& tensor : graph.tensors) {
    if (tensor.scalar && tensor.type == GraphType::int32) {
      scalars_.push_back({tensor.id, static_cast<std::int32_t>(*tensor.scalar)});
    } else if (tensor.scalar) {
      scalars_.push_back({tensor.id, static_cast<float>(*tensor.scalar)});
    } else if (!tensor.is_virtual) {
      stored_.push_back(tensor.id);
    }
  }
  std::string refusals;
  std::vector<CudnnDescriptor> configurations = operations_.engine_configurations();
  if (engine >= std::ssize(configurations)) {
    fail_request("run.attention asks for engine {} of cuDNN {}, which lists {} for this attention, from 0", engine,
                 cudnnGetVersion(), configurations.size());
  }
  for (int number = 0; CudnnDescriptor & configuration : configurations) {
    if (engine >= 0 && number++ != engine) continue;
    try {
      CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      if (const auto* properties = std::get_if<CudnnDescriptor>(&target.device_)) {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *properties);
      } else {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, std::get<cudnnHandle_t>(target.device_));
      }
      plan.finalize();
      workspace_bytes_ = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      configuration_.emplace(std::move(configuration));
      plan_.emplace(std::move(plan));
      return;
    } catch (const Error& error) {
      refusals += std::string("\n") + error.what();
    }
  }
  fail("cuDNN {} has no engine for this attention graph:\n{}{}", cudnnGetVersion(), format(graph), refusals);
}

void CudnnPlan::execute(cudnnHandle_t handle, const CudnnPointers& pointers, void* workspace) const {
  require(pointers.size() == stored_.size(), "every stored tensor of the graph has a pointer");
  std::vector<std::int64_t> ids;
  std::vector<void*> values;
  for (std::int64_t id : stored_) {
    const auto pointer = pointers.find(static_cast<AttentionTensor>(id));
    require(pointer != pointers.end(), "every stored tensor of the graph has a pointer");
    require(reinterpret_cast<std::uintptr_t>(pointer->second) % 16 == 0, "tensors of cuDNN are 16-byte aligned");
    ids.push_back(id);
    values.push_back(pointer->second);
  }
  // cuDNN takes scalars through host pointers and never writes them.
  for (const Scalar& scalar : scalars_) {
    ids.push_back(scalar.id);
    values.push_back(std::visit([](const auto& value) { return const_cast<void*>(static_cast<const void*>(&value)); },
                                scalar.value));
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::ssize(ids), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::ssize(values), values.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  WEFT_CUDNN(cudnnBackendExecute(handle, plan_->get(), pack.get()));
}

}  // namespace weft
