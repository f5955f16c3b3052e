// Lamb's norms are those of whole parameters, wherever their rows are.
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>

#include "tests/trainer/tiny_layout.h"
#include "tests/trainer/update_arrays.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

constexpr std::size_t size = 5000;
constexpr std::int64_t tensors = 3;

GroupStep lamb(std::int64_t step) {
  return {.rule = UpdateRule::lamb, .learning_rate = 1e-2, .weight_decay = 0.1, .step = step};
}

// One parameter whose rows differ in size from place to place, so that no part's norm is that of the whole.
UpdateArrays<float, float> uneven() {
  UpdateArrays<float, float> arrays(UpdateRule::lamb, 0.0, size);
  for (std::size_t i = 0; i < size; ++i) arrays.parameters[i] *= static_cast<float>(i) / size;
  return arrays;
}

// Rank r of 4 owns a run of another length.
std::vector<std::vector<UpdateRows>> split(UpdateArrays<float, float>& arrays) {
  constexpr std::size_t begins[] = {0, 17, 1000, 3001, size};
  std::vector<std::vector<UpdateRows>> ranks;
  for (std::size_t r = 0; r < 4; ++r) {
    ranks.push_back({arrays.run(begins[r], begins[r + 1] - begins[r])});
    ranks.back().front().tensor = 1;
  }
  return ranks;
}

std::vector<double> summed_norms(CpuStepper& stepper, const std::vector<std::vector<UpdateRows>>& ranks,
                                 const GroupStep& step) {
  std::vector<double> sums(2 * tensors);
  for (const auto& rows : ranks) {
    const std::vector<double> own = stepper.norms(rows, step, 0.5f, tensors);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
  }
  return sums;
}

// A rate in float32 may round otherwise when a sum in double differs in its last bits. Elements then agree within a few
// units of float32, which 1e-6 of their size is. A step moves 1e-2 of it.
TEST(LambNorms, OfSplitRowsAddUpToThoseOfTheWhole) {
  auto whole = uneven(), parts = uneven(), naive = uneven();
  UpdateRows all = whole.whole();
  all.tensor = 1;
  CpuStepper stepper;
  for (std::int64_t step = 1; step <= 5; ++step) {
    whole.draw_gradients(step);
    parts.draw_gradients(step);
    naive.draw_gradients(step);
    const std::vector<double> expected = stepper.norms({all}, lamb(step), 0.5f, tensors);
    const auto ranks = split(parts);
    const std::vector<double> sums = summed_norms(stepper, ranks, lamb(step));
    for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], expected[i], 1e-6 * expected[i]) << i;
    EXPECT_EQ(sums[0] + sums[1] + sums[4] + sums[5], 0.0);  // the other tensors
    EXPECT_GT(sums[2], 0.0);
    stepper.run({all}, lamb(step), 0.5f, expected);
    for (const auto& rows : ranks) stepper.run(rows, lamb(step), 0.5f, sums);
    // What a rank would do with the norms of its own rows.
    for (const auto& rows : split(naive)) {
      stepper.run(rows, lamb(step), 0.5f, stepper.norms(rows, lamb(step), 0.5f, tensors));
    }
  }
  double apart = 0, naive_apart = 0, norm = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double right = whole.parameters[i];
    apart += std::pow(parts.parameters[i] - right, 2);
    naive_apart += std::pow(naive.parameters[i] - right, 2);
    norm += std::pow(right, 2);
  }
  EXPECT_LE(std::sqrt(apart / norm), 1e-6);
  EXPECT_GT(std::sqrt(naive_apart / norm), 1e-3);
}

TEST(LambNorms, CountOnlyTheRunsThatTheRankCounts) {
  auto arrays = uneven();
  arrays.draw_gradients(1);
  CpuStepper stepper;
  auto ranks = split(arrays);
  const std::vector<double> once = summed_norms(stepper, ranks, lamb(1));
  // A replica of every rank.
  const auto counted = ranks;
  for (const auto& rows : counted) {
    ranks.push_back(rows);
    ranks.back().front().counted = false;
  }
  EXPECT_EQ(summed_norms(stepper, ranks, lamb(1)), once);
  ranks.back().front().counted = true;
  EXPECT_NE(summed_norms(stepper, ranks, lamb(1)), once);
}

// An update that takes the number of elements for their norm, and has the sums over all ranks checked when it is to
// step. The parameters of the model are those of tiny_config(counted_layers), in the order that all ranks agree on.
constexpr const char* counted_layers = "d e d e";
template <bool tied>
class CountingUpdate final : public RowsUpdate {
 public:
  explicit CountingUpdate(std::vector<UpdateRows> rows) : rows_(std::move(rows)) {}
  void norms(Stream&, std::span<const GroupStep>, ConstTensorView, TensorView sums) override {
    std::ranges::fill(sums.as<double>(), 0.0);
    for (const UpdateRows& run : rows_) {
      if (run.counted) sums.as<double>()[static_cast<std::size_t>(2 * run.tensor)] += run.parameters.size();
    }
  }
  void run(Stream&, std::span<const GroupStep>, ConstTensorView, ConstTensorView sums) override {
    const auto parameters = model_parameters(config_of({.layers = counted_layers, .tied = tied}).model);
    ASSERT_EQ(sums.size(), 2 * std::ssize(parameters));
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      EXPECT_EQ(sums.as<double>()[2 * t], parameters[t].global_size()) << parameters[t].name;
    }
  }

 private:
  std::vector<UpdateRows> rows_;
};
template <bool tied>
std::unique_ptr<Backend> counting_backend() {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  backend->optimizer_kernels.make_update = [](Stream&, MemoryLedger&, std::vector<UpdateRows> rows,
                                              std::vector<UpdateRule>) -> std::unique_ptr<RowsUpdate> {
    return std::make_unique<CountingUpdate<tied>>(std::move(rows));
  };
  return backend;
}

TEST(LambNorms, CountEveryElementOfTheModelOnceWhateverTheLayoutHoldsTwice) {
  for (const Degrees& degrees :
       {Degrees{.data_shard = 2, .tensor = 2}, Degrees{.data_replicate = 2, .data_shard = 2, .tensor = 2},
        Degrees{.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
        Degrees{.data_shard = 2, .tensor = 2, .expert = 2, .expert_tensor = 2}}) {
    for (const ShardStrategy strategy : {ShardStrategy::full_shard, ShardStrategy::no_shard}) {
      for (const bool tied : {false, true}) {
        Config config = config_of({.layers = counted_layers, .degrees = degrees, .strategy = strategy, .tied = tied});
        config.optimizer.rule = UpdateRule::lamb;
        config.run.steps = 1;
        run_steps(config, {}, [&](int) { return tied ? counting_backend<true>() : counting_backend<false>(); });
      }
    }
  }
}

// Asking for norms moves nothing: the moments are moved by the step alone.
TEST(LambNorms, LeaveTheStateAlone) {
  auto arrays = uneven();
  arrays.draw_gradients(1);
  const auto before = arrays;
  CpuStepper stepper;
  stepper.norms({arrays.whole()}, lamb(1), 0.5f);
  EXPECT_TRUE(arrays.same_bits(before));
}

}  // namespace
}  // namespace weft
