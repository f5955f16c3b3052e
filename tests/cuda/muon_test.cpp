// Muon's passes over elements must come out as the CPU has them, bit for bit: they have no sums, and their roundings
// are written out. A whole step then differs by the order in which products add.
#include "trainer/optimizer/muon.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "tests/cuda/two_devices.h"
#include "tests/trainer/muon_reference.h"
#include "tests/trainer/muon_run.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

// Around a thread's elements and a block's, and several blocks; elements behind an aligned address.
constexpr std::int64_t muon_sizes[] = {1, 7, 8, 255, 2048, 2049, 20011};
constexpr std::int64_t muon_offsets[] = {0, 1, 3};
constexpr DType muon_float_types[] = {DType::float32, DType::bfloat16};

class CudaMuonKernels : public TwoDevices {
 protected:
  template <typename Check>
  void for_each_case(Check check) {
    for (double scale : {0.37, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      const Both gradient_scale = values(DType::float32, 1, 1, {scale});
      for (DType dtype : muon_float_types) {
        for (std::int64_t size : muon_sizes) {
          for (std::int64_t offset : muon_offsets) {
            SCOPED_TRACE(fmt::format("{} {} from {}, scaled by {}", size, name_of(dtype), offset, scale));
            check(gradient_scale, dtype, size, offset);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  MuonKernels cpu = cpu_muon_kernels(), gpu = cuda::muon_kernels();
};

TEST_F(CudaMuonKernels, MoveMomentumAsTheCpu) {
  for_each_case([&](const Both& scale, DType dtype, std::int64_t size, std::int64_t offset) {
    for (DType kept : muon_float_types) {
      SCOPED_TRACE(fmt::format("momentum in {}", name_of(kept)));
      const Both gradients = random(DType::float32, size, 1, offset), momentum = random(kept, size, 1, offset);
      const Both update = poisoned(dtype, size, 1, offset);
      cpu.momentum(*cpu_stream, {gradients.cpu, scale.cpu, 0.95f, momentum.cpu, update.cpu});
      gpu.momentum(*gpu_stream, {gradients.gpu, scale.gpu, 0.95f, momentum.gpu, update.gpu});
      expect_equal(momentum);
      expect_equal(update);
      // Rows that another rank sends.
      cpu.momentum(*cpu_stream, {gradients.cpu, scale.cpu, 0.95f, momentum.cpu, update.cpu.rows_from(0, 0)});
      gpu.momentum(*gpu_stream, {gradients.gpu, scale.gpu, 0.95f, momentum.gpu, update.gpu.rows_from(0, 0)});
      expect_equal(momentum);
      expect_equal(update);
    }
  });
}

TEST_F(CudaMuonKernels, ChangeWeightsAsTheCpu) {
  for_each_case([&](const Both& scale, DType dtype, std::int64_t size, std::int64_t offset) {
    const Both direction = random(dtype, size, 1, offset), weights = random(DType::float32, size, 1);
    cpu.change(*cpu_stream, {direction.cpu, scale.cpu, 0.02f, 0.001f, weights.cpu});
    gpu.change(*gpu_stream, {direction.gpu, scale.gpu, 0.02f, 0.001f, weights.gpu});
    expect_equal(weights);
  });
}

class CudaMuonMachine final : public MuonMachine {
 public:
  Device& device() override { return *backend_->device; }
  std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger) override {
    return backend_->make_products(stream, ledger);
  }
  MuonKernels kernels() const override { return cuda::muon_kernels(); }

 private:
  std::unique_ptr<Backend> backend_ = make_cuda_backend(0);
};

// Momentum begins at zero, so what is orthogonalised in the first step is the gradient, up to a factor that its norm
// takes out. Both devices are off by what newton_schulz_error expects, twice at most; the change of a weight is rounded
// in its three terms.
TEST(CudaMuon, StepsAsTheCpu) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  for (DType dtype : muon_float_types) {
    MuonCase the_case{config_of({.layers = "d e", .degrees = {1, 1, 2, 1, 2, 2, 1}}), {.newton_schulz = dtype}, dtype};
    the_case.gradient_scales = {0.5f};
    const MuonRun cpu = run_muon(the_case),
                  gpu = run_muon(the_case, [] { return std::make_unique<CudaMuonMachine>(); });
    ASSERT_TRUE(gpu.faults.empty()) << gpu.faults.front() << " and " << gpu.faults.size() - 1 << " more";
    ASSERT_EQ(gpu.weights.size(), cpu.weights.size());
    EXPECT_EQ(gpu.momentum, cpu.momentum);
    const std::int64_t columns = the_case.config.model.hidden_size;
    for (const auto& [name, weights] : cpu.weights) {
      muon_reference::Matrix gradient{std::ssize(weights) / columns, columns, {}};
      for (std::int64_t i = 0; i < std::ssize(weights); ++i) {
        gradient.values.push_back(gradient_of_step(name, 0, i));
      }
      const std::vector<float>& found = gpu.weights.at(name);
      const muon_reference::Matrix expected{gradient.rows, columns, {weights.begin(), weights.end()}};
      const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(gradient.rows, columns)));
      const double direction =
          muon_reference::newton_schulz_error(gradient, dtype == DType::float32 ? 0x1.0p-24 : 0x1.0p-8);
      const double allowed = 0.01 * factor * 4 * direction + 3 * 0x1.0p-24 * muon_reference::norm(expected);
      EXPECT_LE(muon_reference::distance({gradient.rows, columns, {found.begin(), found.end()}}, expected), allowed)
          << name << " in " << name_of(dtype);
      // What a step changes is far more.
      EXPECT_LE(allowed,
                (dtype == DType::float32 ? 1e-3 : 0.3) * 0.01 * factor * std::sqrt(static_cast<double>(columns) / 2));
    }
  }
}

}  // namespace
}  // namespace weft
