// Device memory of tests, full of NaN until written.
#pragma once

#include <cuda_runtime_api.h>

#include <iterator>
#include <memory>
#include <vector>

#include "parallel/runtime/dtype.h"

namespace weft {

inline void check_cuda(cudaError_t status, const char* expression) {
  if (status != cudaSuccess) fail("{}: {}", expression, cudaGetErrorString(status));
}
#define WEFT_TEST_CUDA(expression) check_cuda((expression), #expression)

// Device memory full of NaN: all bits set.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::int64_t bytes) {
    void* data = nullptr;
    WEFT_TEST_CUDA(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
    data_.reset(data);
    WEFT_TEST_CUDA(cudaMemset(data, 0xff, static_cast<std::size_t>(bytes)));
  }
  void* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const { cudaFree(data); }
  };
  std::unique_ptr<void, Free> data_;
};

// A matrix of T on the device, from doubles and back.
template <typename T>
class DeviceMatrix {
 public:
  // `values` become what T can hold of them; NaN stays NaN.
  explicit DeviceMatrix(std::vector<double>& values)
      : memory_(std::ssize(values) * static_cast<std::int64_t>(sizeof(T)) + 16), elements_(values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      elements_[i] = T(static_cast<float>(values[i]));
      values[i] = static_cast<double>(static_cast<float>(elements_[i]));
    }
    WEFT_TEST_CUDA(cudaMemcpy(memory_.get(), elements_.data(), elements_.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  T* at(std::int64_t offset) const { return static_cast<T*>(memory_.get()) + offset; }
  std::vector<double> values() {
    WEFT_TEST_CUDA(cudaMemcpy(elements_.data(), memory_.get(), elements_.size() * sizeof(T), cudaMemcpyDeviceToHost));
    std::vector<double> result;
    for (const T& element : elements_) result.push_back(static_cast<double>(static_cast<float>(element)));
    return result;
  }

 private:
  DeviceMemory memory_;
  std::vector<T> elements_;
};

}  // namespace weft
