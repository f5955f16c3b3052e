// Device arrays for tests, and a fresh machine for each.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "machine.h"
#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda_emulator {

class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override { machine.configure({}); }
  void TearDown() override { machine.configure({}); }

  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  template <typename T>
  static T* upload(const std::vector<T>& values) {
    void* data = nullptr;
    WEFT_CUDA_CHECK(cudaMalloc(&data, values.size() * sizeof(T)));
    WEFT_CUDA_CHECK(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(data);
  }
  // Waits for `stream` first.
  template <typename T>
  static std::vector<T> download(cudaStream_t stream, const T* data, std::size_t count) {
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<T> values(count);
    WEFT_CUDA_CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  // Whether a report contains `text`.
  bool reported(const std::string& text) const {
    for (const auto& report : machine.reports()) {
      if (report.find(text) != std::string::npos) return true;
    }
    return false;
  }

  Machine& machine = Machine::instance();
};

}  // namespace weft::cuda_emulator
