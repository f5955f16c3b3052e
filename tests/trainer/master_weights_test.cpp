// Rows that a rank owns are stored in float32 and gathered in 16 bits: updates far below what 16 bits hold add up.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/staging.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// Lion moves every element by its rate in every step, up or down. The rate is 1e-4 of the weights, whose standard
// deviation is 0.1; two neighbours in bfloat16 are at least 2^-8 = 4e-3 of a number apart. In float32 a step is exact
// up to one rounding of the weight.
TEST(MasterWeights, KeepAThousandUpdatesThatComputationDoesNotSee) {
  constexpr float rate = 1e-5f;
  Config config = config_of(
      {.layers = "d", .degrees = {.data_shard = 2}, .precision = {DType::float32, DType::bfloat16, DType::float32}});
  config.training.global_batch_size = 2;
  config.run.steps = 1000;
  config.optimizer.rule = UpdateRule::lion;
  config.optimizer.learning_rate = double{rate};
  config.optimizer.weight_decay = 0.0;

  struct Held {
    std::vector<float> weights;
    std::int64_t moves = 0, unseen = 0, lost = 0;
  };
  std::vector<Held> ranks(2);  // each rank has its own
  const auto narrowed = [](float value) { return static_cast<float>(bfloat16(value)); };
  const auto owned = [](RankRun& run) {
    std::vector<float> all;
    for (std::size_t u = 0; u < run.stages().planned_units().size(); ++u) {
      if (run.stages().planned_units()[u]->plan.family == Family::embedding) continue;  // unused bytes have no gradient
      for (const OwnedRows& rows : run.stages().owned_rows(u)) {
        const auto values = read<float>(run.stream(), rows.values);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  };
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) { ranks[static_cast<std::size_t>(run.rank())].weights = owned(run); };
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    Held& held = ranks[static_cast<std::size_t>(run.rank())];
    const std::vector<float> now = owned(run);
    ASSERT_EQ(now.size(), held.weights.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      const float before = held.weights[i], moved = std::abs(now[i] - before);
      ++held.moves;
      held.unseen += narrowed(before + rate) == narrowed(before) && narrowed(before - rate) == narrowed(before) ? 1 : 0;
      held.lost += std::abs(moved - rate) > std::abs(before) * 0x1p-23f ? 1 : 0;
    }
    held.weights = now;
  };
  const KeptRun run = run_kept(config, observer);
  for (const Held& held : ranks) {
    EXPECT_GT(held.moves, 1'000'000);
    EXPECT_EQ(held.lost, 0);
    EXPECT_GT(static_cast<double>(held.unseen), 0.8 * static_cast<double>(held.moves));
  }
  // Computation reads 16 bits: gathers send half of what those in float32 do.
  config.run.steps = 1;
  config.precision.compute = DType::float32;
  const auto gathered = [](const KeptRun& of) {
    return of.steps.front().communication.at({"dp_shard", CollectiveOp::all_gather}).bytes;
  };
  EXPECT_EQ(2 * gathered(run), gathered(run_kept(config)));
}

}  // namespace
}  // namespace weft
