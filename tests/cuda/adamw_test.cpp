// All rows of a rank in one launch must come out as adamw_update has them, bit for bit: the formula has no sums, and
// its roundings are written out.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/staging.h"
#include "trainer/gradient_norm.h"
#include "trainer/optimizer/cuda/kernels.h"

namespace weft {
namespace {

constexpr std::int64_t array_count = 4;  // parameters, gradients, first and second moment

// Sizes around a vector and around a chunk of the kernel, and rows that a rank does not own between them.
constexpr std::int64_t run_sizes[] = {1, 0, 3, 8192, 2, 8191, 4, 8193, 257, 5, 40000, 1, 16384, 31};
constexpr std::int64_t gap = 3;

struct Arrays {
  std::vector<float> values[array_count];
};

Arrays random_arrays(std::int64_t size, std::mt19937& generator) {
  constexpr float largest[array_count] = {1.0f, 3.0f, 0.1f, 0.2f};
  Arrays arrays;
  for (int array = 0; array < array_count; ++array) {
    const bool second_moment = array == 3;  // never negative
    std::uniform_real_distribution<float> values(second_moment ? 0.0f : -largest[array], largest[array]);
    for (std::int64_t i = 0; i < size; ++i) arrays.values[array].push_back(values(generator));
  }
  return arrays;
}

class CudaAdamw : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = cuda::why_no_device()) GTEST_SKIP() << *reason;
    device = cuda::make_device(0);
    stream = device->create_stream("compute");
    ledger = std::make_unique<MemoryLedger>(*device, *stream);
  }

  Tensor upload(const std::vector<float>& values) {
    Tensor tensor =
        ledger->allocate(Bucket::optimizer_state, DType::float32, static_cast<std::int64_t>(values.size()), 1);
    write<float>(*stream, values, tensor);
    return tensor;
  }
  template <typename T>
  Tensor scalar(T value) {
    Tensor tensor = ledger->allocate(Bucket::optimizer_state, dtype_of<T>, 1, 1);
    write<T>(*stream, std::span<const T>(&value, 1), tensor);
    return tensor;
  }

  // Two steps over all runs. Run r begins `shifts[a]` elements later in array a than in the others.
  void expect_steps_of_cpu(const std::int64_t (&shifts)[array_count]) {
    std::int64_t size = 8;
    for (const std::int64_t run : run_sizes) size += run + gap;
    std::mt19937 generator(20);
    Arrays expected = random_arrays(size, generator);
    std::vector<Tensor> arrays;
    for (const auto& values : expected.values) arrays.push_back(upload(values));

    struct Run {
      std::int64_t begin, size;
      bool decayed;
    };
    std::vector<Run> runs;
    std::vector<AdamwRows> rows;
    std::int64_t begin = 0;
    for (const std::int64_t run : run_sizes) {
      const bool decayed = runs.size() % 2 == 0;
      runs.push_back({begin, run, decayed});
      const auto part = [&](int array) { return arrays[array].view().rows_from(begin + shifts[array], run); };
      rows.push_back({part(0), part(1), part(2), part(3), decayed});
      begin += run + gap;
    }

    const OptimizerKernels kernels = cuda::optimizer_kernels();
    const auto update = kernels.make_adamw(*stream, *ledger, rows);
    constexpr float gradient_scale = 0.37f;
    const Tensor scale = scalar(gradient_scale);
    for (std::int64_t step = 1; step <= 2; ++step) {
      AdamwStep options{.learning_rate = 0.01, .weight_decay = 0.1, .step = step};
      update->run(*stream, options, scale);
      for (const Run& run : runs) {
        options.weight_decay = run.decayed ? 0.1 : 0.0;
        const auto part = [&](int array) {
          return std::span(expected.values[array]).subspan(run.begin + shifts[array], run.size);
        };
        adamw_update(options, gradient_scale, part(0), part(1), part(2), part(3));
      }
    }
    // Gaps included: nothing outside of the runs may change.
    for (int array = 0; array < array_count; ++array) {
      const std::vector<float> found = read<float>(*stream, arrays[array]);
      for (std::int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(expected.values[array][i]))
            << "array " << array << ", element " << i << ": " << found[i] << " for " << expected.values[array][i];
      }
    }
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<MemoryLedger> ledger;
};

TEST_F(CudaAdamw, UpdatesUnevenRowsAsTheCpu) {
  expect_steps_of_cpu({0, 0, 0, 0});
}

TEST_F(CudaAdamw, UpdatesRowsThatNoVectorFits) {
  expect_steps_of_cpu({0, 1, 2, 0});
}

TEST_F(CudaAdamw, TakesNoRowsAtAll) {
  const auto update = cuda::optimizer_kernels().make_adamw(*stream, *ledger, {});
  const Tensor scale = scalar(1.0f);
  update->run(*stream, {.learning_rate = 0.01}, scale);
  stream->synchronize();
}

TEST_F(CudaAdamw, ClipsAsTheCpu) {
  const float poison = std::numeric_limits<float>::quiet_NaN();
  for (const double square_sum : {0.0, 1.0, 2.0, 1e30, std::numeric_limits<double>::infinity()}) {
    for (const double largest : {0.0, 0.5, 1.0, 7.0}) {
      const Tensor sum = scalar(square_sum);
      Tensor scale = scalar(poison);
      cuda::optimizer_kernels().clip_scale(*stream, sum, largest, scale);
      EXPECT_EQ(read<float>(*stream, scale)[0], static_cast<float>(clip_factor(std::sqrt(square_sum), largest)));
    }
  }
}

}  // namespace
}  // namespace weft
