// Runs the same call on the CPU and on a GPU (or its emulation) with equal inputs, and compares what they wrote. For
// what the CPU's tests have already argued to be right.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/ledger.h"

namespace weft {

// One tensor on either device.
struct Both {
  TensorView cpu, gpu;
};

class TwoDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = cuda::why_no_device()) GTEST_SKIP() << *reason;
    gpu_device = cuda::make_device(0);
    gpu_stream = gpu_device->create_stream("compute");
    gpu_ledger.emplace(*gpu_device, *gpu_stream);
  }
  // A write outside a tensor shows here, where there is an emulator to see it.
  void TearDown() override {
    storage.clear();
    if (gpu_stream) gpu_stream->synchronize();
  }

  // Contents of `bytes`, beginning `offset` elements behind an aligned address on both devices.
  Both both(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<std::byte>& bytes,
            std::int64_t offset = 0) {
    const std::int64_t before = offset * size_of(dtype), size = static_cast<std::int64_t>(bytes.size());
    if (size == 0) return {TensorView(nullptr, dtype, rows, columns), TensorView(nullptr, dtype, rows, columns)};
    Tensor& cpu = storage.emplace_back(cpu_ledger.allocate(Bucket::activations, dtype, 1, rows * columns + offset));
    Tensor& gpu = storage.emplace_back(gpu_ledger->allocate(Bucket::activations, dtype, 1, rows * columns + offset));
    std::memcpy(cpu.view().data() + before, bytes.data(), bytes.size());
    const Both result = {TensorView(cpu.view().data() + before, dtype, rows, columns),
                         TensorView(gpu.view().data() + before, dtype, rows, columns)};
    move(bytes.data(), nullptr, result.gpu.data(), size);
    return result;
  }
  // All bits set: NaN in every floating type, -1 in int32.
  Both poisoned(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t offset = 0) {
    return both(dtype, rows, columns, std::vector<std::byte>(rows * columns * size_of(dtype), std::byte{0xff}), offset);
  }
  Both values(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<double>& numbers,
              std::int64_t offset = 0) {
    std::vector<std::byte> bytes(numbers.size() * size_of(dtype));
    const auto put = [&](std::size_t i, auto value) {
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    };
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (dtype == DType::float32) put(i, static_cast<float>(numbers[i]));
      if (dtype == DType::bfloat16) put(i, bfloat16(static_cast<float>(numbers[i])));
      if (dtype == DType::float16) put(i, float16(static_cast<float>(numbers[i])));
      if (dtype == DType::float64) put(i, numbers[i]);
      if (dtype == DType::int32) put(i, static_cast<std::int32_t>(numbers[i]));
    }
    return both(dtype, rows, columns, bytes, offset);
  }
  // Standard normal numbers, new ones with every call; integers up to +-1000.
  Both random(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t offset = 0, double scale = 1.0) {
    std::vector<double> numbers(rows * columns);
    std::normal_distribution<double> normal(0.0, dtype == DType::int32 ? 300.0 : scale);
    for (double& number : numbers) number = normal(generator);
    return values(dtype, rows, columns, numbers, offset);
  }
  Both integers(std::int64_t count, std::int32_t first, std::int32_t last) {
    std::vector<double> numbers(count);
    std::uniform_int_distribution<std::int32_t> uniform(first, last);
    for (double& number : numbers) number = uniform(generator);
    return values(DType::int32, count, 1, numbers);
  }

  std::vector<std::byte> gpu_bytes(ConstTensorView tensor) {
    std::vector<std::byte> bytes(tensor.bytes());
    if (!bytes.empty()) move(nullptr, bytes.data(), const_cast<std::byte*>(tensor.data()), tensor.bytes());
    return bytes;
  }
  void expect_equal(const Both& tensor) {
    const std::vector<std::byte> bytes = gpu_bytes(tensor.gpu);
    if (bytes.empty()) return;
    const std::int64_t width = size_of(tensor.cpu.dtype());
    for (std::int64_t i = 0; i < tensor.cpu.size(); ++i) {
      ASSERT_EQ(std::memcmp(bytes.data() + i * width, tensor.cpu.data() + i * width, width), 0)
          << "element " << i << " of " << tensor.cpu.rows() << " x " << tensor.cpu.columns() << " "
          << name_of(tensor.cpu.dtype()) << ": " << at(bytes.data(), tensor.cpu.dtype(), i) << ", the CPU has "
          << at(tensor.cpu.data(), tensor.cpu.dtype(), i);
    }
  }
  // |gpu - cpu| <= float_error + one unit roundoff of the dtype (2 where both may round apart) of the value; NaN and
  // infinity only where the CPU has them. Returns the largest difference in parts of what is allowed.
  double expect_close(const Both& tensor, double float_error) {
    const std::vector<std::byte> bytes = gpu_bytes(tensor.gpu);
    const DType dtype = tensor.cpu.dtype();
    const double unit = dtype == DType::bfloat16  ? 0x1.0p-8
                        : dtype == DType::float16 ? 0x1.0p-11
                        : dtype == DType::float32 ? 0x1.0p-24
                                                  : 0x1.0p-53;
    // Half the distance of subnormal numbers; that of the others does not count.
    const double least = dtype == DType::float16 ? 0x1.0p-25 : 0.0;
    double largest = 0;
    for (std::int64_t i = 0; i < tensor.cpu.size(); ++i) {
      const double actual = at(bytes.data(), dtype, i), expected = at(tensor.cpu.data(), dtype, i);
      if (std::isnan(expected) && std::isnan(actual)) continue;
      if (actual == expected) continue;
      const double allowed = float_error + 2 * std::max(unit * std::abs(expected), least),
                   off = std::abs(actual - expected);
      EXPECT_LE(off, allowed) << "element " << i << " of " << tensor.cpu.rows() << " x " << tensor.cpu.columns() << " "
                              << name_of(dtype) << ": " << actual << ", the CPU has " << expected;
      if (!(off <= allowed)) return off / allowed;
      largest = std::max(largest, off / allowed);
    }
    return largest;
  }

  static double at(const std::byte* data, DType dtype, std::int64_t i) {
    const auto get = [&](auto value) {
      std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof value), sizeof value);
      return static_cast<double>(static_cast<std::conditional_t<sizeof value == 2, float, decltype(value)>>(value));
    };
    if (dtype == DType::float32) return get(float());
    if (dtype == DType::bfloat16) return get(bfloat16());
    if (dtype == DType::float16) return get(float16());
    if (dtype == DType::float64) return get(double());
    return get(std::int32_t());
  }

  // `from` to the device, or the device to `to`, through staging memory.
  void move(const std::byte* from, std::byte* to, std::byte* device, std::int64_t bytes) {
    void* staging = gpu_device->allocate_staging(bytes);
    if (from != nullptr) std::memcpy(staging, from, bytes);
    gpu_device->copy(*gpu_stream, from != nullptr ? staging : device, from != nullptr ? device : staging, bytes);
    gpu_stream->synchronize();
    if (to != nullptr) std::memcpy(to, staging, bytes);
    gpu_device->release_staging(staging, bytes);
  }

  std::mt19937_64 generator{7};
  std::unique_ptr<Device> cpu_device = make_cpu_device(), gpu_device;
  std::unique_ptr<Stream> cpu_stream = cpu_device->create_stream("compute"), gpu_stream;
  MemoryLedger cpu_ledger{*cpu_device, *cpu_stream};
  std::optional<MemoryLedger> gpu_ledger;
  std::deque<Tensor> storage;
};

}  // namespace weft
