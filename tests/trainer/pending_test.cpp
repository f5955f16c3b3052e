// Activations that wait for a weight gradient are in the program. With a split backward the ledger of every rank has at
// its peak the bytes of the list. On top of it are no more than flows between segments and the own bytes of one
// segment.
#include <gtest/gtest.h>

#include "tests/trainer/kept_activations.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// The tensors beside what one segment makes: the activations and the gradient sent last, which stay until the next
// send. A message is received right before the action that takes it.
std::int64_t most_besides(const Config& config) {
  return most_of_a_segment(config) + 2 * config.microbatch_tokens() * config.model.hidden_size * 4;
}

class Pending : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(Pending, IsInThePeakOfTheProgram) {
  Config config = config_of(GetParam());
  config.training.global_batch_size = 8;
  config.run.steps = 2;
  // So much of one block waits for a weight gradient that the bound tells whether it was counted.
  const std::int64_t of_a_block = config.microbatch_tokens() * 3 * (2 * config.model.hidden_size) * 4;
  const std::int64_t blocks_a_stage = 8 / config.parallelism.pipeline;
  ASSERT_LT(most_besides(config), blocks_a_stage * of_a_block);

  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    SCOPED_TRACE(fmt::format("rank {}, step {}", run.rank(), metrics.step));
    const std::int64_t measured = run.ledger().peak_by_bucket()[Bucket::activations];
    const std::int64_t predicted = largest_kept(run.program(), run.rank());
    EXPECT_GE(measured, predicted);
    EXPECT_LE(measured, predicted + most_besides(config));
  };
  run_steps(config, observer);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Pending,
    ::testing::Values(TinyLayout{.name = "pp2_zb_h1", .layers = "d*8", .degrees = {.pipeline = 2}, .schedule = "zb_h1"},
                      TinyLayout{.name = "pp4_zb_h1", .layers = "d*8", .degrees = {.pipeline = 4}, .schedule = "zb_h1"},
                      TinyLayout{.name = "pp4_zb_h1_frozen",
                                 .layers = "d*8",
                                 .degrees = {.pipeline = 4},
                                 .schedule = "zb_h1",
                                 .frozen = {Family::dense}},
                      TinyLayout{.name = "pp4_1f1b", .layers = "d*8", .degrees = {.pipeline = 4}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
