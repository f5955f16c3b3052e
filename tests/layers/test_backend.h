// The backend of the tests of kernels and segments. make_test_backend() is resolved when the program is linked: the
// CPU's is in cpu_test_backend.cpp, and another program compiles the same tests with another definition.
//
// All files of this folder are device-neutral except those named cpu_* and model_config_test.cpp, which computes
// nothing. The former are the CPU's backend, and tests of the promises of its implementation alone. Neutral files touch
// no device memory except through kernels, copies and staging.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"

namespace weft {

class TestBackend {
 public:
  virtual ~TestBackend() = default;
  // Why nothing can be computed here (no GPU), or nothing. Where there is a reason, device() and kernels() still
  // answer, so that fixtures can be built, but nothing is asked of them.
  virtual std::optional<std::string> unavailable() const { return std::nullopt; }
  virtual Device& device() = 0;
  virtual const LayerKernels& kernels() const = 0;
  // Products queued on `stream`; a GPU's take `workspace_bytes` a stream from `ledger`. Both outlive them.
  virtual std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger,
                                                        std::int64_t workspace_bytes = product_workspace_bytes) = 0;
  // Sums of products of 8 bits are within this share of the sum of the magnitudes, beside the roundings of float32.
  virtual double float8_sum_error() const { return 0.0; }
  // Scans round the factors of their products to the dtype of their tensors, and not to float32.
  virtual bool scans_in_dtype() const { return false; }
};

// One per rank, made by the rank's thread before anything else.
std::unique_ptr<TestBackend> make_test_backend();

// A test that computes on the device under test, or is skipped where there is none.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::optional<std::string> reason = backend->unavailable()) GTEST_SKIP() << *reason;
  }

  std::unique_ptr<TestBackend> backend = make_test_backend();
};

}  // namespace weft
