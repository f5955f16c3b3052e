// The bytes of the GPU's pool, against the ledger's count and the program's prediction, and the message where there is
// no more room.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <mutex>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"

#if __has_include("cuda_emulator.h")
#include "tests/cuda_emulator/machine.h"
#define WEFT_ON_EMULATOR 1
#endif

namespace weft {
namespace {

#ifdef WEFT_ON_EMULATOR
constexpr bool on_emulator = true;
#else
constexpr bool on_emulator = false;
#endif

constexpr double mib = 1024.0 * 1024.0;

// Mostly vocabulary, which takes little time: 17 MB of parameters, as much of gradients, twice that of moments.
Config wide_config(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.model.vocab_size = 16384;
  config.model.hidden_size = 128;
  config.training.global_batch_size = 2 * config.parallelism.data();
  config.run.steps = 3;
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = config.parallelism.world();
  return config;
}

class CudaMemory : public ::testing::TestWithParam<TinyLayout> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
};

TEST_P(CudaMemory, ThePoolHoldsWhatTheLedgerCounts) {
  const Config config = wide_config(GetParam());
  std::mutex mutex;
  std::vector<std::int64_t> highest(static_cast<std::size_t>(config.parallelism.world()));
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(fmt::format("rank {}, step {}", run.rank(), metrics.step));
    const BucketBytes& predicted = run.predicted();
    for (std::size_t b = 0; b < bucket_count; ++b) {
      const auto bucket = static_cast<Bucket>(b);
      if (!is_static(bucket)) continue;
      EXPECT_EQ(run.ledger().live()[bucket], predicted[bucket]) << name_of(bucket);
      EXPECT_EQ(run.ledger().peak_by_bucket()[bucket], predicted[bucket]) << name_of(bucket);
    }
    std::int64_t& peak = highest[static_cast<std::size_t>(run.rank())];
    peak = std::max(peak, run.ledger().at_peak().total());
    if (metrics.step != config.run.steps) return;
    const cuda::PoolUse use = cuda::pool_use(run.stream().device());
    fmt::print("rank {}: predicted {:.2f} MiB, ledger's peak {:.2f} MiB, pool used {:.2f} MiB, reserved {:.2f} MiB\n",
               run.rank(), static_cast<double>(predicted.total()) / mib, static_cast<double>(peak) / mib,
               static_cast<double>(use.used_high) / mib, static_cast<double>(use.reserved_high) / mib);
    EXPECT_GT(peak, 20 << 20) << "too small a model to compare";
    // Whatever a tensor holds comes from the pool.
    EXPECT_GE(use.used_high, peak);
    // On top come 64 bytes for a smaller tensor and rows reserved for routing. A GPU adds rounding of each block to
    // 512 bytes, and blocks with a release that is queued but not reached. A rank has a few hundred tensors at a time.
    constexpr std::int64_t rounding = 1 << 20;
    EXPECT_LE(static_cast<double>(use.used_high), 1.02 * static_cast<double>(peak) + static_cast<double>(rounding));
    EXPECT_GE(use.reserved_high, use.used_high);
    // The prediction leaves out what kernels besides the products take as workspace, and deals routed rows evenly.
    const auto expected = static_cast<double>(predicted.total());
    EXPECT_NEAR(static_cast<double>(peak), expected, 0.02 * expected + mib);
  };
  run_steps(config, observer, [](int) { return make_cuda_backend(0); });
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaMemory,
                         ::testing::Values(TinyLayout{.name = "alone", .layers = "d*2"},
                                           TinyLayout{.name = "shard2_reshard_after_use",
                                                      .layers = "d*2",
                                                      .degrees = {.data_shard = 2},
                                                      .residency = "reshard_after_use"},
                                           TinyLayout{.name = "experts_shard2_bfloat16",
                                                      .layers = "d e",
                                                      .degrees = {.data_shard = 2, .expert = 2},
                                                      .precision = {.compute = DType::bfloat16}}),
                         [](const auto& instance) { return instance.param.name; });

class CudaMemoryEnds : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef WEFT_ON_EMULATOR
    cuda_emulator::MachineConfig machine;
    machine.total_memory = std::size_t{160 + 48} << 20;  // 160 MiB are workspace of the matrix products
    cuda_emulator::Machine::instance().configure(machine);
#endif
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
#ifdef WEFT_ON_EMULATOR
  void TearDown() override {
    cuda_emulator::Machine::instance().configure({});
  }
#endif

  static std::string failure_of(const Config& config) {
    try {
      run_steps(config, {}, [](int) { return make_cuda_backend(0); });
      ADD_FAILURE() << "the run does not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failure) << error.what();
      fmt::print("{}\n", error.what());
      return error.what();
    }
    return {};
  }
  static void expect_parts(const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
};

// The model fits, the activations of a microbatch do not: hundreds of GB on a GPU, 67 MB of 50 on the emulator.
TEST_F(CudaMemoryEnds, InActivationsNamesWhatWasAskedForAndWhatIsLive) {
  Config config = config_of({.layers = "d"});
  config.run.device = DeviceKind::cuda;
  config.model.hidden_size = on_emulator ? 256 : 4096;
  config.training.sequence_length = on_emulator ? 8 : 4096;
  config.training.microbatch_size = config.training.global_batch_size = 8192;
  const std::string message = failure_of(config);
  expect_parts(message, {"rank 0: in 0F0(embedding): ", "the GPU refused ", " bytes are free, ",
                         "; asked for activations, beside ", "sharded_parameters ", "sharded_gradients ",
                         "optimizer_state ", " bytes"});
}

// Found before the first step, and the request is named by its bucket too.
TEST_F(CudaMemoryEnds, InParametersNamesThem) {
  Config config = config_of({.layers = "d"});
  config.run.device = DeviceKind::cuda;
  config.model.vocab_size = on_emulator ? 16384 : 1 << 26;
  config.model.hidden_size = on_emulator ? 1024 : 16384;
  expect_parts(failure_of(config), {"rank 0: the GPU refused ", "; asked for sharded_parameters, beside "});
}

}  // namespace
}  // namespace weft
