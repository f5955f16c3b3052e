// All rows of a rank in one launch a rule must come out as on the CPU, bit for bit. The formulas have no sums, their
// roundings are written out, and random bits are functions of places. Lamb's sums add in another order, so its second
// phase is given those of the CPU.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <random>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/staging.h"
#include "tests/trainer/update_arrays.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/plan/gradient_norm.h"

namespace weft {
namespace {

constexpr std::int64_t array_count = 4;  // parameters, gradients, first and second state

// Sizes around a vector and around a chunk of the kernel, and rows that a rank does not own between them.
constexpr std::int64_t run_sizes[] = {1, 0, 3, 8192, 2, 8191, 4, 8193, 257, 5, 40000, 1, 16384, 31};
constexpr std::int64_t gap = 3, tensors = 4;
constexpr float gradient_scale = 0.37f;

struct RuleCase {
  std::string name;
  UpdateRule rule;
  double momentum = 0.9;
};
const std::vector<RuleCase> rule_cases = {{"adamw", UpdateRule::adamw},
                                          {"sgd", UpdateRule::sgd, 0.0},
                                          {"momentum", UpdateRule::sgd},
                                          {"lion", UpdateRule::lion},
                                          {"lamb", UpdateRule::lamb}};

// Two groups, of which the second is not decayed.
std::vector<GroupStep> steps_of(const RuleCase& rule, std::int64_t step) {
  GroupStep decayed{
      .rule = rule.rule, .learning_rate = 0.01, .weight_decay = 0.1, .momentum = rule.momentum, .step = step};
  GroupStep undecayed = decayed;
  undecayed.weight_decay = 0.0;
  return {decayed, undecayed};
}

// One array in host memory, and a place for it on the device.
struct HostArray {
  DType dtype = DType::float32;
  std::vector<float> wide;
  std::vector<bfloat16> narrow;

  HostArray(DType dtype_of_all, std::int64_t size, float low, float high, std::mt19937& generator)
      : dtype(dtype_of_all) {
    std::uniform_real_distribution<float> values(low, high);
    for (std::int64_t i = 0; i < size; ++i) {
      if (dtype == DType::float32) {
        wide.push_back(values(generator));
      } else {
        narrow.push_back(bfloat16(values(generator)));
      }
    }
  }
  TensorView view() {
    if (dtype == DType::float32) return view_of(std::span(wide), std::ssize(wide), 1);
    return view_of(std::span(narrow), std::ssize(narrow), 1);
  }
};

class CudaUpdate : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = cuda::why_no_device()) GTEST_SKIP() << *reason;
    device = cuda::make_device(0);
    stream = device->create_stream("compute");
    ledger = std::make_unique<MemoryLedger>(*device, *stream);
  }

  template <typename T>
  Tensor upload(const std::vector<T>& values) {
    Tensor tensor = ledger->allocate(Bucket::optimizer_state, dtype_of<T>, static_cast<std::int64_t>(values.size()), 1);
    write<T>(*stream, values, tensor);
    return tensor;
  }
  template <typename T>
  Tensor scalar(T value) {
    return upload(std::vector<T>{value});
  }
  Tensor pair(double first, double second) { return upload(std::vector<double>{first, second}); }
  // The CPU's array and the device's hold the same bits.
  void expect_same(const HostArray& expected, ConstTensorView found, const std::string& what) {
    const auto compare = [&](const auto& want, const auto& got) {
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(want[i])), 0)
            << what << ", element " << i << ": " << static_cast<float>(got[i]) << " for "
            << static_cast<float>(want[i]);
      }
    };
    if (expected.dtype == DType::float32) {
      compare(expected.wide, read<float>(*stream, found));
    } else {
      compare(expected.narrow, read<bfloat16>(*stream, found));
    }
  }

  // Two steps over all runs, and a third that is skipped. Run r begins `shifts[a]` elements later in array a than in
  // the others.
  void expect_steps_of_cpu(const RuleCase& rule, DType parameters, DType states,
                           const std::int64_t (&shifts)[array_count]) {
    std::int64_t size = 8;
    for (const std::int64_t run : run_sizes) size += run + gap;
    std::mt19937 generator(20);
    std::vector<HostArray> expected = {{parameters, size, -1.0f, 1.0f, generator},
                                       {DType::float32, size, -3.0f, 3.0f, generator},
                                       {states, size, -0.1f, 0.1f, generator},
                                       {states, size, 0.0f, 0.2f, generator}};  // second moments are never negative
    std::vector<Tensor> arrays;
    for (const HostArray& array : expected) {
      arrays.push_back(array.dtype == DType::float32 ? upload(array.wide) : upload(array.narrow));
    }

    const int states_of_rule = states_of(rule.rule, rule.momentum);
    std::vector<UpdateRows> rows_of_cpu, rows;
    std::int64_t begin = 0;
    for (const std::int64_t run : run_sizes) {
      UpdateRows common;
      common.group = static_cast<int>(rows.size() % 2);
      common.first_index = 1000 * rows.size() + 7;
      common.name_key = 0x9876543210u + rows.size();
      common.tensor = static_cast<std::int64_t>(rows.size() % (tensors - 1));
      common.counted = rows.size() % 5 != 3;
      const auto on = [&](auto view_of_array) {
        UpdateRows result = common;
        const auto part = [&](int array) { return view_of_array(array).rows_from(begin + shifts[array], run); };
        result.parameters = part(0);
        result.gradients = part(1);
        if (states_of_rule > 0) result.first_state = part(2);
        if (states_of_rule > 1) result.second_state = part(3);
        return result;
      };
      rows_of_cpu.push_back(on([&](int array) { return expected[static_cast<std::size_t>(array)].view(); }));
      rows.push_back(on([&](int array) { return arrays[static_cast<std::size_t>(array)].view(); }));
      begin += run + gap;
    }

    const std::vector<UpdateRule> rules(2, rule.rule);
    const auto update = cuda::optimizer_kernels().make_update(*stream, *ledger, rows, rules);
    CpuStepper cpu;
    const auto update_of_cpu = cpu.make(rows_of_cpu, rules);
    for (std::int64_t step = 1; step <= 3; ++step) {
      float host_scale = step == 3 ? std::numeric_limits<float>::infinity() : gradient_scale;
      const TensorView scale_of_cpu(&host_scale, DType::float32, 1, 1);
      const Tensor scale = scalar(host_scale);
      const std::vector<GroupStep> steps = steps_of(rule, step);
      std::vector<double> host_sums;
      Tensor sums;
      if (rule.rule == UpdateRule::lamb) {
        host_sums.assign(2 * tensors, std::nan(""));
        sums = upload(host_sums);
        update_of_cpu->norms(cpu.stream(), steps, scale_of_cpu, view_of(std::span(host_sums), 2 * tensors, 1));
        update->norms(*stream, steps, scale, sums);
        if (step < 3) expect_sums(read<double>(*stream, sums), host_sums, size);
        write<double>(*stream, host_sums, sums);
      }
      update_of_cpu->run(cpu.stream(), steps, scale_of_cpu, view_of(std::span(host_sums), std::ssize(host_sums), 1));
      update->run(*stream, steps, scale, sums);
      // Gaps included: nothing outside of the runs may change.
      for (std::size_t array = 0; array < expected.size(); ++array) {
        expect_same(expected[array], arrays[array], fmt::format("{}, step {}, array {}", rule.name, step, array));
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
  // Sums of n positive terms in double differ by at most 2 n 2^-53 of themselves.
  static void expect_sums(const std::vector<double>& found, const std::vector<double>& expected, std::int64_t terms) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 2.0 * static_cast<double>(terms) * 0x1p-53 * expected[i]) << i;
    }
    EXPECT_GT(expected.front(), 0.0);
    EXPECT_EQ(found.back(), 0.0);  // a tensor of other ranks
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<MemoryLedger> ledger;
};

TEST_F(CudaUpdate, StepsUnevenRowsAsTheCpu) {
  for (const RuleCase& rule : rule_cases) {
    for (const DType parameters : {DType::float32, DType::bfloat16}) {
      for (const DType states : {DType::float32, DType::bfloat16}) {
        expect_steps_of_cpu(rule, parameters, states, {0, 0, 0, 0});
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

TEST_F(CudaUpdate, StepsRowsThatNoVectorFits) {
  expect_steps_of_cpu(rule_cases[0], DType::float32, DType::float32, {0, 1, 2, 0});
  for (const RuleCase& rule : rule_cases) {
    expect_steps_of_cpu(rule, DType::bfloat16, DType::bfloat16, {0, 1, 2, 0});
    // Where 16 bytes of float32 begin, those of bfloat16 need not.
    expect_steps_of_cpu(rule, DType::float32, DType::bfloat16, {0, 0, 4, 4});
    ASSERT_FALSE(HasFatalFailure());
  }
}

// Runs of several rules and types at a time, some of them frozen.
TEST_F(CudaUpdate, StepsGroupsOfDifferentRulesTogether) {
  constexpr std::int64_t size = 1000;
  std::mt19937 generator(21);
  std::vector<std::vector<HostArray>> expected;
  std::vector<std::vector<Tensor>> arrays;
  std::vector<UpdateRows> rows_of_cpu, rows;
  std::vector<GroupStep> steps;
  std::vector<UpdateRule> rules;
  expected.reserve(rule_cases.size());
  for (std::size_t g = 0; g < rule_cases.size(); ++g) {
    const DType states = g % 2 == 0 ? DType::float32 : DType::bfloat16;
    steps.push_back(steps_of(rule_cases[g], 1).front());
    steps.back().learning_rate *= static_cast<double>(g + 1);
    rules.push_back(rule_cases[g].rule);
    expected.push_back({{DType::float32, size, -1.0f, 1.0f, generator},
                        {DType::float32, size, -3.0f, 3.0f, generator},
                        {states, size, -0.1f, 0.1f, generator},
                        {states, size, 0.0f, 0.2f, generator}});
    arrays.emplace_back();
    for (const HostArray& array : expected.back()) {
      arrays.back().push_back(array.dtype == DType::float32 ? upload(array.wide) : upload(array.narrow));
    }
    const int kept = states_of(rule_cases[g].rule, rule_cases[g].momentum);
    const auto add = [&](std::vector<UpdateRows>& to, auto view_of_array) {
      UpdateRows& run = to.emplace_back();
      run.group = static_cast<int>(g);
      run.parameters = view_of_array(0).rows_from(0, size / 2);
      run.gradients = view_of_array(1).rows_from(0, size / 2);
      if (kept > 0) run.first_state = view_of_array(2).rows_from(0, size / 2);
      if (kept > 1) run.second_state = view_of_array(3).rows_from(0, size / 2);
      UpdateRows& frozen = to.emplace_back();
      frozen.group = static_cast<int>(g);
      frozen.parameters = view_of_array(0).rows_from(size / 2, size / 2);
    };
    add(rows_of_cpu, [&](int array) { return expected[g][static_cast<std::size_t>(array)].view(); });
    add(rows, [&](int array) { return arrays[g][static_cast<std::size_t>(array)].view(); });
  }
  CpuStepper cpu;
  float host_scale = gradient_scale;
  std::vector<double> host_sums{3.0, 5.0};
  const Tensor scale = scalar(host_scale), sums = upload(host_sums);
  cpu.make(rows_of_cpu, rules)
      ->run(cpu.stream(), steps, TensorView(&host_scale, DType::float32, 1, 1), view_of(std::span(host_sums), 2, 1));
  cuda::optimizer_kernels().make_update(*stream, *ledger, rows, rules)->run(*stream, steps, scale, sums);
  for (std::size_t g = 0; g < expected.size(); ++g) {
    for (std::size_t a = 0; a < expected[g].size(); ++a) {
      expect_same(expected[g][a], arrays[g][a], fmt::format("{}, array {}", rule_cases[g].name, a));
    }
  }
}

TEST_F(CudaUpdate, TakesNoRowsAtAll) {
  const auto update = cuda::optimizer_kernels().make_update(*stream, *ledger, {}, {UpdateRule::adamw});
  const Tensor scale = scalar(1.0f);
  const GroupStep step{.learning_rate = 0.01};
  update->run(*stream, {&step, 1}, scale, {});
  stream->synchronize();
}

TEST_F(CudaUpdate, ClipsAsTheCpu) {
  const float poison = std::numeric_limits<float>::quiet_NaN();
  for (const double square_sum : {0.0, 1.0, 2.0, 1e30, 0x1p200}) {
    for (const double largest : {0.0, 0.5, 1.0, 7.0}) {
      for (const double inverse_loss_scale : {1.0, 0.125, 0.3}) {
        const Tensor sums = pair(square_sum, 2.5);
        Tensor scale = scalar(poison);
        cuda::optimizer_kernels().clip_scale(*stream, sums, {largest, inverse_loss_scale, {square_sum, 2.5}}, scale);
        EXPECT_EQ(read<float>(*stream, scale)[0],
                  static_cast<float>(gradient_factor(square_sum, largest, inverse_loss_scale)));
      }
    }
  }
  for (const double square_sum : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const double largest : {0.0, 1.0}) {
      const Tensor sums = pair(square_sum, 2.5);
      Tensor scale = scalar(1.0f);
      cuda::optimizer_kernels().clip_scale(*stream, sums, {largest, 1.0}, scale);
      EXPECT_TRUE(std::isnan(read<float>(*stream, scale)[0]));
    }
  }
  // A sum above its limit voids the step; one at its limit, as above, does not.
  for (const SumLimits limits : {SumLimits{.square_sum = 2.0 * (1 - 0x1p-52)}, SumLimits{.loss_sum = 2.4}}) {
    for (const double largest : {0.0, 1.0}) {
      Tensor scale = scalar(1.0f);
      cuda::optimizer_kernels().clip_scale(*stream, pair(2.0, 2.5), {largest, 1.0, limits}, scale);
      EXPECT_TRUE(std::isnan(read<float>(*stream, scale)[0]));
    }
  }
}

}  // namespace
}  // namespace weft
