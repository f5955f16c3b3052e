// Validation between steps. Its loss is that of an evaluation of the checkpoint, and training does not notice it. Its
// memory is foreseen, and the best checkpoint stays.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/trainer/evaluate_files.h"
#include "tests/trainer/held_out_text.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_run.h"
#include "tests/trainer/used_layouts.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

std::vector<TinyLayout> validated_layouts() {
  const std::string mixed = "d e d e";
  std::vector<TinyLayout> all = used_layouts();
  all.push_back({.name = "cp2", .layers = mixed, .degrees = {.context = 2}});
  // The second stage of a rank has other segment numbers without the predictors of a stage between.
  all.push_back({.name = "predictor_apart_v",
                 .layers = "d e m*2",
                 .degrees = {.pipeline = 2},
                 .schedule = "zbv",
                 .chunks = 2,
                 .stages = "Ed|e|mm|L"});
  all.push_back(
      {.name = "dualpipev", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "dualpipev", .chunks = 2});
  all.push_back({.name = "zb_h1", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zb_h1"});
  return all;
}

Config validating(Config config, const HeldOutText& text, std::int64_t interval) {
  config.validation.data = text.files();
  config.validation.interval = interval;
  return config;
}

// By step, of the last run.
std::map<std::int64_t, HeldOutLoss> validations_of(const Config& config, LearnedRun* learned = nullptr) {
  std::map<std::int64_t, HeldOutLoss> found;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (run.rank() == 0 && metrics.validation) found[metrics.step] = *metrics.validation;
  };
  LearnedRun run = learn(config, observer);
  if (learned != nullptr) *learned = std::move(run);
  return found;
}

// Validates after every step and keeps the best checkpoint.
Config keeping_best(const HeldOutText& text, const std::filesystem::path& folder, std::int64_t steps,
                    std::int64_t interval) {
  Config config =
      validating(saving_config({.layers = "d e", .degrees = {.data_shard = 2}}, folder, steps, interval), text, 1);
  config.validation.keep_best = true;
  return config;
}

class Validation : public testing::TestWithParam<TinyLayout> {};

TEST_P(Validation, IsTheEvaluationOfTheCheckpointBitForBit) {
  HeldOutText text("weft-validation");
  for (std::size_t length : {37, 2, 121}) text.add_random(length);
  const TemporaryFolder folder;
  const Config config = validating(saving_config(GetParam(), folder.path(), 4, 2), text, 2);
  const auto found = validations_of(config);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found.at(2).loss, found.at(4).loss);
  for (const auto& [step, validation] : found) {
    const std::filesystem::path checkpoint = folder.path() / checkpoint_name(step);
    const HeldOutLoss expected = evaluate(config, text.files(), weights_of_checkpoint(checkpoint, config));
    EXPECT_EQ(validation.loss, expected.loss) << "step " << step;
    EXPECT_EQ(validation.tokens, expected.tokens);
    EXPECT_EQ(validation.bytes, expected.bytes);
  }
}

TEST_P(Validation, LeavesTrainingAsItIs) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  Config config = config_of(GetParam());
  config.run.steps = 4;
  const LearnedRun plain = learn(config);
  LearnedRun validated;
  EXPECT_EQ(validations_of(validating(config, text, 1), &validated).size(), 4u);
  EXPECT_TRUE(difference(plain, validated).bitwise_equal);
  EXPECT_EQ(plain.losses, validated.losses);
}

// On every rank: of the forwards as foreseen, and never above the step's own peak.
TEST_P(Validation, TakesTheMemoryThatIsForeseen) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  Config config = validating(config_of(GetParam()), text, 1);
  config.run.steps = 1;
  const ResolvedRun resolved(config);
  RunObserver observer;
  const bool routed = routing_decides(config);
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    const std::int64_t measured = run.ledger().at_peak().total();
    const auto foreseen = [&](Routing routing) {
      return dry_forward_peak(config, resolved.mesh(), run.program(), run.rank(), without_training(config), routing)
          .total();
    };
    if (!routed) {
      EXPECT_EQ(measured, foreseen(Routing::even)) << run.rank();
    }
    EXPECT_LE(measured, foreseen(Routing::worst)) << run.rank();
    const Routing worst = routed ? Routing::worst : Routing::even;
    EXPECT_LE(foreseen(worst), dry_peak(config, resolved.mesh(), run.program(), run.rank(), worst).total())
        << run.rank();
  };
  learn(config, observer);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Validation, testing::ValuesIn(validated_layouts()),
                         [](const auto& layout) { return layout.param.name; });

// weft eval rounds the batch for its schedule, so that a pass has more microbatches than one of the run.
TEST(Validation, DealsForcedExpertsAsAnEvaluationInOtherPasses) {
  HeldOutText text("weft-validation");
  for (std::size_t length : {37, 2, 321}) text.add_random(length);
  const TemporaryFolder folder;
  Config config =
      validating(saving_config({.layers = "d e e", .degrees = {.pipeline = 2}}, folder.path(), 2, 2), text, 2);
  config.model.moe.force_balance = true;
  config.model.moe.num_experts = 5;  // the tokens of a pass do not divide by it
  const HeldOutLoss found = validations_of(config).at(2);
  const FillWeights weights = weights_of_checkpoint(folder.path() / checkpoint_name(2), config);
  config.training.global_batch_size *= 3;
  EXPECT_EQ(found.loss, evaluate(config, text.files(), weights).loss);
}

TEST(Validation, FollowsItsIntervalAndTheLastStep) {
  HeldOutText text("weft-validation");
  text.add_random(60);
  Config config = validating(config_of({.layers = "d e"}), text, 3);
  config.run.steps = 7;
  std::vector<std::int64_t> steps;
  for (const auto& [step, validation] : validations_of(config)) steps.push_back(step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{3, 6, 7}));
  config.validation.interval = 0;
  EXPECT_EQ(validations_of(config).begin()->first, 7);
}

TEST(Validation, ReadsNoMoreThanItsBatches) {
  HeldOutText text("weft-validation"), beginning("weft-validation-beginning");
  text.add_random(4000);
  Config config = config_of({.layers = "d e"});
  config.run.steps = 1;
  const std::int64_t tokens = 2 * config.training.global_batch_size * config.training.sequence_length;
  beginning.add(text.texts().front().substr(0, static_cast<std::size_t>(tokens + 1)));
  Config part = validating(config, text, 1);
  part.validation.batches = 2;
  const auto found = validations_of(part), expected = validations_of(validating(config, beginning, 1));
  EXPECT_EQ(found.at(1).tokens, tokens);
  EXPECT_EQ(found.at(1).loss, expected.at(1).loss);
}

// Residency "auto" is solved for training's step; between steps parameters stay for one use.
TEST(Validation, GoesWithSolvedTiming) {
  HeldOutText text("weft-validation");
  text.add_random(60);
  Config config = config_of({.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2}, .residency = "auto"});
  config.memory_budget = std::int64_t{1} << 30;
  config.run.steps = 2;
  LearnedRun solved;
  const auto found = validations_of(validating(config, text, 2), &solved);
  EXPECT_TRUE(difference(learn(config), solved).bitwise_equal);
  Config simple = config_of({.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2}});
  simple.run.steps = 2;
  EXPECT_NEAR(found.at(2).loss, validations_of(validating(simple, text, 2)).at(2).loss, 1e-5);
}

// The smallest budget may be kept by another layout of stages than the fastest one. Forwards have that of training.
TEST(Validation, GoesWithTheLayoutOfAMemoryBudget) {
  HeldOutText text("weft-validation");
  text.add_random(60);
  const auto layout_of = [](const Config& config) { return to_string(ResolvedRun(config).layout(), config.model); };
  int moved = 0;
  for (const std::string layers : {"e e", "e e d", "d d e"}) {
    TinyLayout simple{.layers = layers, .degrees = {.pipeline = 2}};
    Config config = config_of(simple);
    config.run.steps = 2;
    const double expected = validations_of(validating(config, text, 2)).at(2).loss;
    simple.residency = "auto";
    config = config_of(simple);
    config.run.steps = 2;
    config.memory_budget = std::int64_t{1} << 30;
    const std::string fastest = layout_of(config);
    config.memory_budget = 1;
    const std::string refused = refusal_of([&] { layout_of(config); }).value_or("");
    const std::string named = "the smallest budget that does is ";
    ASSERT_NE(refused.find(named), std::string::npos) << refused;
    config.memory_budget = std::stoll(refused.substr(refused.find(named) + named.size()));
    moved += layout_of(config) != fastest ? 1 : 0;
    EXPECT_NEAR(validations_of(validating(config, text, 2)).at(2).loss, expected, 1e-5) << layers;
  }
  EXPECT_GT(moved, 0);
}

void set_rates(Config& config, double rate) {
  config.optimizer.learning_rate = rate;
  for (auto& [group, optimizer] : config.optimizer_by_group) optimizer.learning_rate = rate;
}

// A learning rate spoils the model after some steps. The best checkpoint stays though it is an old one, and a run that
// goes on knows it.
TEST(Validation, KeepsTheBestCheckpoint) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  const TemporaryFolder folder;
  Config config = keeping_best(text, folder.path(), 8, 1);
  config.checkpoint.keep_latest = 1;
  config.run.steps = 4;
  auto found = validations_of(config);
  const auto least = [&] {
    return std::ranges::min_element(found, {}, [](const auto& entry) { return entry.second.loss; })->first;
  };
  auto best = find_best(folder.path());
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, least());
  EXPECT_EQ(best->loss, found.at(best->step).loss);

  // From here on every step makes it worse.
  set_rates(config, 3.0);
  config.run.steps = 8;
  found.merge(validations_of(config));
  best = find_best(folder.path());
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, least());
  EXPECT_LT(best->step, 8);
  std::vector<std::int64_t> kept;
  for (const CheckpointFolder& checkpoint : find_checkpoints(folder.path())) kept.push_back(checkpoint.step);
  EXPECT_EQ(kept, (std::vector<std::int64_t>{8, best->step}));
  EXPECT_EQ(resolve_checkpoint(folder.path() / "best").step, best->step);
}

// The newest checkpoint, which is the best, is damaged. Of the older ones the best stays, and none that comes later and
// is worse takes its place.
TEST(Validation, ABestThatIsPassedOverLeavesTheOneBefore) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  const TemporaryFolder folder;
  Config config = keeping_best(text, folder.path(), 3, 1);
  config.checkpoint.keep_latest = 2;
  const auto losses = validations_of(config);
  ASSERT_LT(losses.at(3).loss, losses.at(2).loss);
  ASSERT_LT(losses.at(2).loss, losses.at(1).loss);
  for (const auto& file : std::filesystem::directory_iterator(folder.path() / checkpoint_name(3))) {
    if (file.path().extension() == ".safetensors") std::filesystem::resize_file(file, 100);
  }
  set_rates(config, 3.0);
  config.run.steps = 5;
  for (const auto& [step, validation] : validations_of(config)) EXPECT_GT(validation.loss, losses.at(2).loss) << step;
  EXPECT_EQ(find_best(folder.path()).value().step, 2);
  EXPECT_EQ(find_best(folder.path()).value().loss, losses.at(2).loss);
}

// Someone goes back to a checkpoint before both in `best`. The run then writes them anew, with other weights: they are
// not the best by the losses of the old ones.
TEST(Validation, ABestBehindTheRunIsForgotten) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  const TemporaryFolder folder;
  Config config = keeping_best(text, folder.path(), 3, 1);
  const auto losses = validations_of(config);
  ASSERT_LT(losses.at(3).loss, losses.at(2).loss);
  ASSERT_LT(losses.at(2).loss, losses.at(1).loss);
  for (const std::string& gone : {checkpoint_name(3), checkpoint_name(2), std::string("latest")}) {
    std::filesystem::remove_all(folder.path() / gone);
  }
  config.validation.keep_best = false;
  set_rates(config, 3.0);
  EXPECT_GT(validations_of(config).at(3).loss, losses.at(3).loss);
  EXPECT_EQ(find_best(folder.path()), std::nullopt);
}

// A checkpoint that is in place counts, though a name beside it could not be written.
TEST(Validation, ABestIsOneWhateverFailsBehindIt) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  const TemporaryFolder folder;
  Config config = keeping_best(text, folder.path(), 4, 1);
  config.checkpoint.keep_latest = 0;
  set_rates(config, 3.0);
  const auto losses = validations_of(config);
  const auto least = std::ranges::min_element(losses, {}, [](const auto& entry) { return entry.second.loss; });
  ASSERT_LT(least->first, 4);
  config.checkpoint.directory = (folder / "again").string();
  std::filesystem::create_directories(folder / "again" / "latest_checkpointed_iteration.txt");
  EXPECT_THROW(run_steps(config, {}, {}, {}), Error);
  EXPECT_EQ(find_best(folder / "again").value().step, least->first);
}

// Of an open file; empty if it has none.
std::string path_of(int file) {
  std::error_code none;
  return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file), none).string();
}

// A save under way is the best of its time, also if the next validation is better by the time that it is done. And if
// the next one cannot be saved, what is saved stays the best.
TEST(Validation, ABestThatCannotBeSavedLeavesTheOneBefore) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  const TemporaryFolder folder;
  Config config = keeping_best(text, folder.path(), 2, 0);
  config.checkpoint.at_end = false;
  const auto losses = validations_of(config);
  ASSERT_LT(losses.at(2).loss, losses.at(1).loss);
  config.checkpoint.directory = (folder / "again").string();
  CheckpointSetup setup;
  setup.calls.flush = [](int file) {
    if (path_of(file).find("00000002") == std::string::npos) return ::fsync(file);
    errno = EIO;
    return -1;
  };
  EXPECT_THROW(run_steps(config, {}, {}, setup), Error);
  const auto best = find_best(folder / "again");
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, 1);
  EXPECT_EQ(best->loss, losses.at(1).loss);
}

// Rank 0 writes the manifest when all ranks have written their parts. A best without one is no best to any rank, and a
// later step that is better than the one before it is saved.
TEST(Validation, ABestWithoutAManifestIsNone) {
  HeldOutText text("weft-validation");
  text.add_random(200);
  const TemporaryFolder folder;
  Config config = keeping_best(text, folder.path(), 10, 0);
  config.checkpoint.at_end = false;
  config.checkpoint.asynchronous = false;
  set_rates(config, 0.1);
  config.checkpoint.directory = (folder / "whole").string();
  const auto losses = validations_of(config);
  const auto best_without = [&](std::int64_t refused, bool compared) {
    std::int64_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [step, validation] : losses) {
      if (validation.loss >= least) continue;
      if (step != refused) best = step;
      if (step != refused || compared) least = validation.loss;
    }
    return best;
  };
  int told_apart = 0;
  for (std::int64_t refused = 1; refused <= 10; ++refused) {
    SCOPED_TRACE(refused);
    config.checkpoint.directory = (folder / fmt::format("refused{}", refused)).string();
    CheckpointSetup setup;
    setup.calls.write = [&](int file, const void* data, std::size_t bytes) -> ssize_t {
      const std::string path = path_of(file);
      const bool its = path.find(checkpoint_name(refused)) != std::string::npos;
      if (!its || path.find(manifest_name) == std::string::npos) return ::write(file, data, bytes);
      errno = ENOSPC;
      return -1;
    };
    try {
      run_steps(config, {}, {}, setup);
    } catch ([[maybe_unused]] const Error& last_save) {
    }
    const auto best = find_best(config.checkpoint.directory);
    EXPECT_EQ(best ? best->step : 0, best_without(refused, false));
    EXPECT_EQ(find_unfinished(config.checkpoint.directory), std::vector<std::filesystem::path>{});
    told_apart += best_without(refused, false) != best_without(refused, true);
  }
  EXPECT_GT(told_apart, 0);
}

TEST(Validation, ABestThatIsGoneIsNone) {
  const TemporaryFolder folder;
  EXPECT_EQ(find_best(folder.path()), std::nullopt);
  name_best(folder.path(), {.step = 3, .loss = 1.25});
  EXPECT_EQ(find_best(folder.path()), std::nullopt);
  std::filesystem::create_directory(folder.path() / checkpoint_name(3));
  std::ofstream(folder.path() / checkpoint_name(3) / manifest_name) << "{}";
  EXPECT_EQ(find_best(folder.path()), (BestCheckpoint{.step = 3, .loss = 1.25}));
  name_best(folder.path(), {.step = 3, .loss = 1.25, .held_out = "0a"});
  EXPECT_EQ(find_best(folder.path()), (BestCheckpoint{.step = 3, .loss = 1.25, .held_out = "0a"}));
  // Of a run that ended before the checkpoint was there, however often it began anew.
  for (const double loss : {1.125, 1.0}) {
    name_best(folder.path(), {.step = 4, .loss = loss});
    EXPECT_EQ(find_best(folder.path()), (BestCheckpoint{.step = 3, .loss = 1.25, .held_out = "0a"}));
  }
  std::ofstream(folder.path() / "best") << "no checkpoint";
  EXPECT_EQ(find_best(folder.path()), std::nullopt);
}

}  // namespace
}  // namespace weft
