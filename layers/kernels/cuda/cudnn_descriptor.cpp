#include <array>
#include <iterator>
#include <utility>

#include "layers/kernels/cuda/cudnn_plan.h"

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

}  // namespace weft
