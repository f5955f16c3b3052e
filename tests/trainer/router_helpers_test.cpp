// The selection biases of routers: state without a gradient, the same on all ranks whatever the layout, moved against
// the load of experts.
#include "trainer/rank/router_helpers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"
#include "tests/trainer/held_out_text.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

using Biases = std::map<int, std::vector<float>>;  // by block

TinyLayout hybrid(Degrees degrees = {}) {
  return {.layers = "d e d e", .degrees = degrees};
}

Config biased(const TinyLayout& layout) {
  Config config = config_of(layout);
  MoeConfig& moe = config.model.moe;
  moe.scoring = Scoring::sigmoid;
  moe.selection_bias = true;
  moe.bias_update_rate = 0.01;
  moe.router_aux_loss_coef = moe.router_z_loss_coef = 0.0;
  return config;
}

// The biases at the end of a run, which all ranks of a stage agree on to the bit.
Biases biases_after(const Config& config, std::vector<StepMetrics>* steps = nullptr) {
  std::mutex mutex;
  Biases all;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (metrics.step != config.run.steps) return;
    for (const auto& [block, values] : run.stages().selection_biases()) {
      const std::vector<float> own = read<float>(run.stream(), values);
      const std::lock_guard lock(mutex);
      const auto [found, fresh] = all.try_emplace(block, own);
      EXPECT_EQ(found->second, own) << "block " << block << ", rank " << run.rank();
    }
  };
  const KeptRun kept = run_kept(config, observer);
  if (steps != nullptr) *steps = kept.steps;
  return all;
}

TEST(BiasSteps, MoveAgainstTheLoad) {
  const std::vector<std::int64_t> choices = {4, 0, 12, 16};  // 8 on average
  EXPECT_EQ(bias_steps(BiasUpdate::sign, 0.5, choices), (std::vector<float>{0.5f, 0.5f, -0.5f, -0.5f}));
  EXPECT_EQ(bias_steps(BiasUpdate::proportional, 0.5, choices), (std::vector<float>{0.25f, 0.5f, -0.25f, -0.5f}));
  for (const BiasUpdate update : all_values<BiasUpdate>) {
    EXPECT_EQ(bias_steps(update, 0.5, std::vector<std::int64_t>{3, 3}), (std::vector<float>{0.0f, 0.0f}));
  }
  // Three null slots with 12 choices: 4 of each, as many as an expert has on average.
  const std::vector<std::int64_t> with_nulls = {2, 6, 12};
  EXPECT_EQ(bias_steps(BiasUpdate::sign, 0.5, with_nulls, 3), (std::vector<float>{0.5f, -0.5f, 0.0f}));
  EXPECT_EQ(bias_steps(BiasUpdate::proportional, 0.5, with_nulls, 3), (std::vector<float>{0.25f, -0.25f, 0.0f}));
}

// Ten steps of one rank, and of layouts along every axis.
TEST(RouterHelpers, AreTheSameBitsInEveryLayout) {
  for (const BiasUpdate update : all_values<BiasUpdate>) {
    const auto run = [&](const TinyLayout& layout) {
      Config config = biased(layout);
      config.model.moe.bias_update = update;
      return biases_after(config);
    };
    const Biases one = run(hybrid());
    ASSERT_EQ(one.size(), 2u);
    for (const auto& [block, bias] : one) {
      EXPECT_TRUE(std::ranges::any_of(bias, [](float value) { return value != 0.0f; })) << "block " << block;
    }
    TinyLayout zbv = hybrid({.pipeline = 2, .data_shard = 2});
    zbv.schedule = "zbv";
    zbv.chunks = 2;
    TinyLayout recomputed = hybrid({.data_shard = 2, .expert = 2});
    recomputed.recompute = Recompute::full;
    for (const TinyLayout& layout :
         {hybrid({.pipeline = 2}), hybrid({.tensor = 2}), hybrid({.tensor = 2, .expert = 2}),
          hybrid({.data_shard = 4, .expert = 4}), hybrid({.data_replicate = 2, .data_shard = 2, .expert = 2}),
          hybrid({.context = 2}), hybrid({.data_shard = 2, .expert = 1, .expert_tensor = 2}),
          hybrid({.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}), zbv, recomputed}) {
      const Degrees& d = layout.degrees;
      SCOPED_TRACE(fmt::format("pp {} dp {}x{} cp {} tp {} ep {} {} {}", d.pipeline, d.data_replicate, d.data_shard,
                               d.context, d.tensor, d.expert, layout.schedule, name_of(layout.recompute)));
      EXPECT_EQ(run(layout), one);
    }
  }
}

// A router of large initial weights prefers some of its eight experts, and stays with them without a bias. 1024 choices
// a step, drawn evenly, would have a largest load of 1.1 times the mean.
TEST(RouterHelpers, EvenOutTheLoad) {
  const auto last_loads = [](bool with_bias) {
    Config config = biased(hybrid({.data_shard = 2, .expert = 2}));
    config.run.steps = 200;
    config.training.global_batch_size = 64;
    config.training.microbatch_size = 16;
    config.model.initializer_range = 0.6;
    config.model.moe.num_experts = 8;
    config.model.moe.selection_bias = with_bias;
    std::vector<StepMetrics> steps;
    biases_after(config, &steps);
    std::vector<double> loads(2, 0.0);
    constexpr std::size_t last = 20;
    for (std::size_t s = steps.size() - last; s < steps.size(); ++s) {
      for (std::size_t b = 0; b < loads.size(); ++b) loads[b] += steps[s].moe[b].max_over_mean / last;
    }
    return loads;
  };
  const std::vector<double> with = last_loads(true), without = last_loads(false);
  for (std::size_t b = 0; b < with.size(); ++b) {
    SCOPED_TRACE(fmt::format("MoE block {}: {} with, {} without", b, with[b], without[b]));
    EXPECT_LT(with[b], 1.2);
    EXPECT_GT(without[b], with[b] + 0.5);
  }
  EXPECT_GT(*std::ranges::max_element(without), 2.0);
}

TEST(RouterHelpers, StayWhereNothingMovesThem) {
  Config still = biased(hybrid());
  still.model.moe.bias_update_rate = 0.0;
  Config frozen = biased(hybrid());
  frozen.training.frozen = {Family::routing};
  for (const Config& config : {still, frozen}) {
    std::vector<StepMetrics> steps;
    for (const auto& [block, bias] : biases_after(config, &steps)) {
      EXPECT_EQ(bias, std::vector<float>(4, 0.0f)) << "block " << block;
    }
    for (const MoeMetrics& moe : steps.back().moe) EXPECT_EQ(moe.bias_norm, 0.0);
  }
}

// The rate falls as the learning rate does. A linear decay of ten steps of 0.01 adds up to 0.055 at most. The reported
// norm is the one before the step.
TEST(RouterHelpers, FollowTheScheduleOfTheLearningRate) {
  Config config = biased(hybrid());
  config.model.moe.bias_schedule = BiasSchedule::learning_rate;
  config.lr_scheduler.decay = Decay::linear;
  config.lr_scheduler.warmup_steps = 0;
  config.lr_scheduler.min_lr_ratio = 0.0;
  std::vector<StepMetrics> steps;
  const Biases falling = biases_after(config, &steps);
  config.model.moe.bias_schedule = BiasSchedule::constant;
  EXPECT_NE(biases_after(config), falling);
  for (const auto& [block, bias] : falling) {
    for (const float value : bias) EXPECT_LT(std::abs(value), 0.056);
  }
  EXPECT_EQ(steps.front().moe.front().bias_norm, 0.0);
  EXPECT_GT(steps.back().moe.front().bias_norm, 0.0);
}

// A run goes on in another layout with the bits that it had.
TEST(RouterHelpers, GoOnFromACheckpointInAnotherLayout) {
  const TemporaryFolder directory;
  Config config = biased(hybrid({.pipeline = 2, .tensor = 2}));
  config.run.steps = 6;
  config.checkpoint.directory = directory.path().string();
  config.checkpoint.interval = 6;
  const Biases saved = biases_after(config);
  Config other = biased(hybrid({.data_shard = 4, .expert = 2}));
  other.checkpoint.directory = config.checkpoint.directory;
  other.run.steps = 7;
  other.model.moe.bias_update_rate = 0.0;
  EXPECT_EQ(biases_after(other), saved);
}

// A bias that is not finite would choose by itself. It is found before the first step.
TEST(RouterHelpers, OfACheckpointMustBeFinite) {
  const TemporaryFolder directory;
  Config config = biased(hybrid({.tensor = 2}));
  config.run.steps = 2;
  config.metrics.interval = 100;
  config.checkpoint.directory = directory.path().string();
  config.checkpoint.interval = 2;
  RunObserver observer;
  observer.after_step = [](RankRun& run, const StepMetrics& metrics) {
    if (metrics.step < 2) return;
    const auto [block, values] = run.stages().selection_biases().back();
    fill(run.stream(), values.rows_from(1, 1), std::numeric_limits<float>::infinity());
  };
  run_steps(config, observer);
  config.run.steps = 3;
  try {
    run_steps(config);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the selection bias of block 3 is inf for expert 1"), std::string::npos)
        << error.what();
  }
}

// Saves that the configuration does not announce: a request, the least validation loss, a spike that ends the run. Each
// compares first, so that no checkpoint has a bias by which no run could go on.
TEST(RouterHelpers, AreComparedBeforeEverySave) {
  HeldOutText text("weft-compared");
  text.add_random(200);
  const std::vector<std::pair<const char*, std::function<void(Config&)>>> causes = {
      {"request", [](Config&) {}},
      {"best",
       [&](Config& config) {
         config.validation = {.data = text.files(), .interval = 1, .batches = 1, .keep_best = true};
       }},
      {"spike", [](Config& config) {
         config.spikes.grad_norm = 1e-9;
         config.spikes.action = SpikeAction::stop;
       }}};
  for (const auto& [name, cause] : causes) {
    const TemporaryFolder folder;
    Config config = saving_config(hybrid(), folder / "a", 3, 0);
    config.model.moe = biased(hybrid()).model.moe;
    config.model.moe.bias_update_rate = 0.0;
    config.metrics.interval = 100;
    config.checkpoint.at_end = false;
    cause(config);
    RunObserver observer;
    observer.before_first_step = [](RankRun& run) {
      const auto [block, values] = run.stages().selection_biases().back();
      fill(run.stream(), values.rows_from(1, 1), std::numeric_limits<float>::infinity());
    };
    const RunRequests requests{.save = [asks = std::string_view(name) == "request"] { return asks; }};
    std::string message;
    try {
      run_steps(config, observer, {}, {}, requests);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("the selection bias of block 3 is inf for expert 1"), std::string::npos) << name << message;
    EXPECT_TRUE(find_checkpoints(folder / "a").empty()) << name;
  }
}

// The message of a run in which rank 3 changes expert 2 of one of its copies behind step 2.
std::string message_of_changed(const std::string& parameter, std::int64_t interval) {
  Config config = biased(hybrid({.pipeline = 2, .data_shard = 2, .expert = 2}));
  config.run.steps = 4;
  config.metrics.interval = interval;
  config.model.moe.bias_update_rate = 0.0;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (run.rank() != 3 || metrics.step != 2) return;
    for (std::size_t u = 0; u < run.stages().planned_units().size(); ++u) {
      for (const OwnedRows& owned : run.stages().owned_rows(u)) {
        if (owned.parameter->name == parameter) fill(run.stream(), owned.values.rows_from(2, 1), 7.0f);
      }
    }
  };
  try {
    run_steps(config, observer);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A copy that has come apart ends the run at the next comparison; the message says which, and whose.
TEST(RouterHelpers, ThatDifferEndTheRun) {
  for (const std::string parameter : {"blocks.3.router.selection_bias", "blocks.3.router.weight"}) {
    const std::string text = message_of_changed(parameter, 1);
    for (const std::string& part : {std::string("rank 3"), parameter, std::string("in row 2")}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
    EXPECT_EQ(message_of_changed(parameter, 100), "");
  }
}

}  // namespace
}  // namespace weft
