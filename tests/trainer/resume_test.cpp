// Runs that are ended and go on: bit for bit where the layout is the same, at the same sample, with what was asked.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/config/update_groups.h"

namespace weft {
namespace {

// The steps of `whole` from `first` on are those of `rest`, to the bit.
void expect_same_end(const LearnedRun& whole, const LearnedRun& rest, std::size_t first) {
  LearnedRun end = whole;
  ASSERT_EQ(whole.losses.size() - first, rest.losses.size());
  end.losses.erase(end.losses.begin(), end.losses.begin() + static_cast<std::ptrdiff_t>(first));
  end.gradient_norms.erase(end.gradient_norms.begin(), end.gradient_norms.begin() + static_cast<std::ptrdiff_t>(first));
  const RunDifference apart = difference(rest, end);
  EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
}

class Resume : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(Resume, IsTheSameRunToTheBit) {
  const TemporaryFolder folder;
  Config config = saving_config(GetParam(), folder / "whole", 5, 0);
  config.lr_scheduler = {2, Decay::cosine, 0.1, 0};
  const LearnedRun whole = learn(config);
  config.checkpoint.directory = (folder / "ended").string();
  config.checkpoint.interval = 3;
  // The schedule of the learning rate spans all 5 steps in both parts: the first is ended by request.
  std::int64_t asked = 0;
  const RunRequests requests{[&] { return ++asked == 3; }};
  const KeptRun first = run_kept(config, {}, {}, {}, requests);
  EXPECT_TRUE(first.stopped);
  EXPECT_EQ(first.steps.size(), 3u);
  const LearnedRun rest = learn(config);
  expect_same_end(whole, rest, 3);
  EXPECT_FALSE(rest.result.stopped);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Resume, ::testing::ValuesIn(saved_layouts()),
                         [](const auto& instance) { return instance.param.name; });

TEST(ResumeRules, HaveTheirStates) {
  const DType wide = DType::float32;
  for (const auto& [rule, kept] : {std::pair(UpdateRule::adamw, wide), std::pair(UpdateRule::sgd, wide),
                                   std::pair(UpdateRule::lion, wide), std::pair(UpdateRule::lamb, wide),
                                   std::pair(UpdateRule::muon, wide), std::pair(UpdateRule::muon, DType::bfloat16)}) {
    const TemporaryFolder folder;
    Config config = saving_config({.layers = "d e", .degrees = {.data_shard = 2}}, folder / "whole", 4, 0);
    config.optimizer.rule = rule;
    config.optimizer.state = kept;
    for (const UpdateGroup group : update_groups) {
      config.optimizer_by_group[group] = inherited_options(config.optimizer, group);
    }
    const LearnedRun whole = learn(config);
    config.checkpoint.directory = (folder / "ended").string();
    config.checkpoint.interval = 2;
    std::int64_t asked = 0;
    run_steps(config, {}, {}, {}, {[&] { return ++asked == 2; }});
    expect_same_end(whole, learn(config), 2);
    const CheckpointReader reader(folder / "ended" / "step-00000002");
    const SavedTensor* state = reader.manifest().find("blocks.0.attention.q_proj.weight", state_name(rule, 0));
    ASSERT_NE(state, nullptr) << name_of(rule);
    EXPECT_EQ(state->dtype, kept) << name_of(rule);
    EXPECT_EQ(reader.manifest().find("blocks.0.attention.q_proj.weight", "exp_avg_sq") != nullptr,
              rule == UpdateRule::adamw || rule == UpdateRule::lamb);
  }
}

TEST(ResumeLossScale, GoesOnWhereItWas) {
  const TemporaryFolder folder;
  TinyLayout layout{.degrees = {.data_shard = 2}};
  layout.precision.compute = DType::float16;
  Config config = saving_config(layout, folder / "whole", 6, 0);
  config.training.initial_loss_scale = 0x1p22;  // overflows at first
  config.training.loss_scale_growth_steps = 2;
  const LearnedRun whole = learn(config);
  config.checkpoint.directory = (folder / "ended").string();
  config.checkpoint.interval = 3;
  std::int64_t asked = 0;
  run_steps(config, {}, {}, {}, {[&] { return ++asked == 3; }});
  const LearnedRun rest = learn(config);
  expect_same_end(whole, rest, 3);
  bool changed = false;
  for (std::size_t i = 0; i < rest.result.steps.size(); ++i) {
    EXPECT_EQ(rest.result.steps[i].loss_scale, whole.result.steps[3 + i].loss_scale);
    changed = changed || rest.result.steps[i].loss_scale != config.training.initial_loss_scale;
  }
  EXPECT_TRUE(changed) << "a scale that never moved shows nothing";
}

// Three batches of 16 sequences, then six of 8: the samples are those of six batches of 16.
TEST(ResumeData, GoesOnAtTheSameSampleWithAnotherBatch) {
  const TemporaryFolder folder;
  Config config = saving_config({.degrees = {.data_shard = 2}}, folder / "a", 3, 3);
  config.optimizer.learning_rate = 0.0;  // the loss of a sample is the same whenever it is read
  config.optimizer.weight_decay = 0.0;
  for (const UpdateGroup group : update_groups) config.optimizer_by_group[group] = config.optimizer;
  Config whole = config;
  whole.checkpoint = {};
  whole.checkpoint.directory = (folder / "none").string();
  whole.run.steps = 6;
  const LearnedRun expected = learn(whole);
  run_steps(config);
  config.training.global_batch_size = 8;
  config.training.microbatch_size = 2;
  config.run.steps = 9;
  const LearnedRun rest = learn(config);
  ASSERT_EQ(rest.losses.size(), 6u);
  for (std::size_t i = 0; i < 3; ++i) {
    // Sums of 16 sequences' losses in another order.
    EXPECT_NEAR((rest.losses[2 * i] + rest.losses[2 * i + 1]) / 2, expected.losses[3 + i],
                1e-6 * expected.losses[3 + i]);
  }
  const CheckpointReader reader(folder / "a" / "step-00000009");
  EXPECT_EQ(reader.manifest().progress.samples, 3 * 16 + 6 * 8);
  EXPECT_EQ(reader.manifest().progress.tokens, (3 * 16 + 6 * 8) * 8);
}

TEST(ResumeWeights, BeginTheCountAnew) {
  const TemporaryFolder folder;
  const Config first = saving_config({.layers = "d e"}, folder / "a", 3, 3);
  const LearnedRun trained = learn(first);
  Config second = saving_config({.layers = "d e", .degrees = {.pipeline = 2}}, folder / "b", 2, 0);
  second.checkpoint.start_from = (folder / "a").string();
  second.data = first.data;
  second.run.seed = 77;  // data in another order; with the whole state this would be refused
  bool same = true;
  RunObserver observer;
  std::mutex mutex;
  WeightCollector collector;
  observer.before_first_step = [&](RankRun& run) {
    const std::scoped_lock lock(mutex);
    collector.add(run.stream(), run.stages());
    same = same && run.progress() == Progress{};
  };
  SaidLines said;
  run_steps(second, observer, {}, said.setup());
  LearnedRun loaded;
  collector.finish(loaded);
  EXPECT_TRUE(same);
  EXPECT_EQ(loaded.weights, trained.weights);
  EXPECT_EQ(said.count("begins with the weights of"), 1) << said.all();
}

// Tensors of `b` are those of `a`, and where `rounded` they went through bfloat16.
void expect_rounded(const std::filesystem::path& of_a, const std::filesystem::path& of_b,
                    const std::function<bool(const SavedTensor&)>& rounded) {
  const CheckpointReader a(of_a / "step-00000002"), back(of_b / "step-00000002");
  int changed = 0;
  for (const SavedTensor& tensor : a.manifest().tensors) {
    std::vector<float> wide(static_cast<std::size_t>(tensor.rows * tensor.columns)), narrowed(wide.size());
    const auto read = [&](const CheckpointReader& reader, std::vector<float>& values) {
      const auto bytes = std::as_writable_bytes(std::span(values));
      reader.read_rows(*reader.manifest().find(tensor.name, tensor.state), 0, tensor.rows,
                       {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
    };
    read(a, wide);
    read(back, narrowed);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(narrowed[i], rounded(tensor) ? static_cast<float>(bfloat16(wide[i])) : wide[i])
          << tensor.name << tensor.state;
      if (narrowed[i] != wide[i]) ++changed;
    }
  }
  EXPECT_GT(changed, 1000);
}

// What is stored in bfloat16 is what was in float32, rounded; the way back is exact.
TEST(ResumePrecision, IsConverted) {
  const TemporaryFolder folder;
  run_steps(saving_config({.layers = "d e", .degrees = {.data_shard = 2}}, folder / "a", 2, 2));
  TinyLayout narrow{.layers = "d e", .degrees = {.pipeline = 2}};
  narrow.precision.parameters = DType::bfloat16;
  resave(config_of(narrow), folder / "a", folder / "b");
  resave(config_of({.layers = "d e"}), folder / "b", folder / "back");
  expect_rounded(folder / "a", folder / "back", [](const SavedTensor& tensor) {
    return tensor.state.empty() && tensor.name.find("router") == std::string::npos;
  });
}

// The momentum of muon too, and other layouts have its bits.
TEST(ResumePrecision, OfMomentumIsConverted) {
  const TemporaryFolder folder;
  const auto with_momentum = [](Config config, DType state) {
    config.optimizer.rule = UpdateRule::muon;
    for (const UpdateGroup group : update_groups) {
      config.optimizer_by_group[group] = inherited_options(config.optimizer, group);
    }
    for (const UpdateGroup group : {UpdateGroup::dense, UpdateGroup::experts}) {
      config.optimizer_by_group[group].state = state;
    }
    return config;
  };
  const TinyLayout stages{.layers = "d e", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}},
      one{.layers = "d e"};
  const Config first = saving_config({.layers = "d e", .degrees = {.data_shard = 2}}, folder / "a", 2, 2);
  run_steps(with_momentum(first, DType::float32));
  resave(with_momentum(config_of(stages), DType::bfloat16), folder / "a", folder / "b");
  resave(with_momentum(config_of(one), DType::float32), folder / "b", folder / "back");
  expect_rounded(folder / "a", folder / "back",
                 [](const SavedTensor& tensor) { return tensor.state == "momentum_buffer"; });
  resave(with_momentum(config_of(one), DType::bfloat16), folder / "b", folder / "c");
  const CheckpointReader b(folder / "b" / "step-00000002"), c(folder / "c" / "step-00000002");
  EXPECT_EQ(differing_tensors(b, c), std::vector<std::string>{});
  EXPECT_EQ(b.manifest().find("blocks.0.attention.q_proj.weight", "momentum_buffer")->dtype, DType::bfloat16);
}

TEST(ResumeRequests, ASaveGoesOnAndAStopSaves) {
  const TemporaryFolder folder;
  const Config config = saving_config({.degrees = {.pipeline = 2}}, folder / "a", 6, 0);
  std::int64_t asked = 0;
  const RunRequests requests{[&] { return asked >= 4; }, [&] { return ++asked == 2; }};
  SaidLines said;
  const KeptRun result = run_kept(config, {}, {}, said.setup(), requests);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps.back().step, 5);
  std::vector<std::int64_t> steps;
  for (const CheckpointFolder& saved : find_checkpoints(folder / "a")) steps.push_back(saved.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 2})) << said.all();
}

TEST(ResumeEnd, ARunThatIsOverTakesNoStep) {
  const TemporaryFolder folder;
  const Config config = saving_config({}, folder / "a", 2, 2);
  run_steps(config);
  const KeptRun again = run_kept(config);
  EXPECT_TRUE(again.steps.empty());
  EXPECT_FALSE(again.stopped);
}

TEST(ResumeKept, AreTheLatestAndEveryNth) {
  const TemporaryFolder folder;
  Config config = saving_config({.degrees = {.data_shard = 2}}, folder / "a", 9, 1);
  config.checkpoint.keep_latest = 2;
  config.checkpoint.keep_every = 4;
  run_steps(config);
  std::vector<std::int64_t> steps;
  for (const CheckpointFolder& saved : find_checkpoints(folder / "a")) steps.push_back(saved.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{9, 8, 4}));
  std::string latest, iteration;
  std::ifstream(folder / "a" / "latest") >> latest;
  std::ifstream(folder / "a" / "latest_checkpointed_iteration.txt") >> iteration;
  EXPECT_EQ(latest, "step-00000009");
  EXPECT_EQ(iteration, "9");
}

// A run that is killed between its last save and the removal of the one before leaves one more.
TEST(ResumeKept, AreNoMoreWhereARunGoesOn) {
  const TemporaryFolder folder;
  Config config = saving_config({}, folder / "a", 4, 1);
  config.checkpoint.keep_latest = 3;
  run_steps(config);
  config.checkpoint.keep_latest = 2;
  const KeptRun again = run_kept(config);
  EXPECT_TRUE(again.steps.empty());
  std::vector<std::int64_t> steps;
  for (const CheckpointFolder& saved : find_checkpoints(folder / "a")) steps.push_back(saved.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{4, 3}));
}

// Saving changes nothing of what is trained, whether files are written beside it or not.
TEST(ResumeSaving, LeavesTheRunAsItIs) {
  const TemporaryFolder folder;
  const TinyLayout layout{.layers = "d e", .degrees = {.pipeline = 2, .data_shard = 2}};
  const LearnedRun alone = learn(saving_config(layout, folder / "none", 5, 0));
  for (const bool asynchronous : {true, false}) {
    Config config = saving_config(layout, folder / (asynchronous ? "a" : "b"), 5, 1);
    config.checkpoint.asynchronous = asynchronous;
    config.checkpoint.keep_latest = 0;
    EXPECT_TRUE(difference(learn(config), alone).bitwise_equal);
  }
  for (const CheckpointFolder& saved : find_checkpoints(folder / "a")) {
    const CheckpointReader here(saved.path), there(folder / "b" / checkpoint_name(saved.step));
    EXPECT_EQ(differing_tensors(here, there), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace weft
