// The number of microbatches that a rank holds, seen from the bytes of its ledger alone. A 1F1B that is GPipe in fact
// keeps all of them, and no loss or weight would show it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// The largest that activations became on each pipeline rank, in the second step.
std::vector<std::int64_t> activation_peaks(const std::string& schedule, int pipeline, int microbatches) {
  Config config = config_of({.layers = "d*4", .degrees = {.pipeline = pipeline}, .schedule = schedule});
  config.training.global_batch_size = microbatches;
  config.run.steps = 2;
  std::vector<std::int64_t> peaks(static_cast<std::size_t>(pipeline));
  RunObserver observer;
  // Each rank writes its own element.
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    peaks[static_cast<std::size_t>(run.rank())] = run.ledger().peak_by_bucket()[Bucket::activations];
  };
  run_steps(config, observer);
  return peaks;
}

// What crosses a stage boundary for one microbatch: sequence_length x hidden_size in float32.
std::int64_t boundary_bytes() {
  const Config config = tiny_config("d*4");
  return config.microbatch_tokens() * config.model.hidden_size * 4;
}

class InFlight : public ::testing::TestWithParam<int> {};

// Peaks of GPipe grow by what one kept microbatch adds. They do so evenly from two microbatches on. With a single one
// the tensor sent last is not yet held while the next forward runs. The first difference may therefore be a boundary
// more.
TEST_P(InFlight, GpipeHoldsEveryMicrobatch) {
  const int pipeline = GetParam();
  std::vector<std::vector<std::int64_t>> peaks;  // by microbatches, from 1
  for (int m = 1; m <= 8; ++m) peaks.push_back(activation_peaks("gpipe", pipeline, m));
  for (std::size_t rank = 0; rank < peaks[0].size(); ++rank) {
    const std::int64_t kept = peaks[2][rank] - peaks[1][rank];
    EXPECT_GT(kept, 4 * boundary_bytes());  // x, normed, q, k, v, ... of a block
    const std::int64_t first = peaks[1][rank] - peaks[0][rank];
    EXPECT_GE(first, kept) << "rank " << rank;
    EXPECT_LE(first, kept + 2 * boundary_bytes()) << "rank " << rank;
    for (std::size_t m = 3; m < peaks.size(); ++m) {
      EXPECT_EQ(peaks[m][rank] - peaks[m - 1][rank], kept) << "rank " << rank << ", microbatches " << m + 1;
    }
  }
}

TEST_P(InFlight, OneForwardOneBackwardHoldsAsManyAsThereAreRanksBehind) {
  const int pipeline = GetParam();
  const auto gpipe1 = activation_peaks("gpipe", pipeline, 1), gpipe2 = activation_peaks("gpipe", pipeline, 2),
             gpipe3 = activation_peaks("gpipe", pipeline, 3);
  std::vector<std::int64_t> settled(static_cast<std::size_t>(pipeline));
  for (int m = 1; m <= 8; ++m) {
    const auto peaks = activation_peaks("1f1b", pipeline, m);
    for (int rank = 0; rank < pipeline; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const std::int64_t kept = gpipe3[r] - gpipe2[r];
      // Besides kept microbatches the orders differ in what is on its way: the activations and the gradient sent last
      // stay until the next send. Two boundaries, here and in the run of one microbatch, move the quotient by less than
      // a half, so that rounding finds the number.
      ASSERT_LT(2 * boundary_bytes(), kept / 2);
      const double more = static_cast<double>(peaks[r] - gpipe1[r]) / static_cast<double>(kept);
      const int in_flight = 1 + static_cast<int>(std::lround(more));
      EXPECT_EQ(in_flight, std::min(pipeline - rank, m))
          << "rank " << rank << ", microbatches " << m << ": " << more << " more than one";
      if (m == pipeline + 1) settled[r] = peaks[r];
      if (m > pipeline) {
        EXPECT_EQ(peaks[r], settled[r]) << "rank " << rank << ", microbatches " << m;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, InFlight, ::testing::Values(2, 4),
                         [](const auto& instance) { return fmt::format("pp{}", instance.param); });

}  // namespace
}  // namespace weft
