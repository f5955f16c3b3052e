// First configurations: sizes near what was asked, proportions that train, and texts that read back as what they say.
#include "trainer/planning/first_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>

#include "parallel/runtime/error.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

FirstRunRequest request_of(double parameters, std::int64_t experts = 0, std::int64_t vocabulary = 32000) {
  FirstRunRequest request;
  request.parameters = parameters;
  request.experts = experts;
  request.vocab_size = vocabulary;
  request.data_tokens = std::int64_t{1} << 40;
  request.sequence_length = usual_length(parameters);
  request.data.train = {DataSource("tokens.bin")};
  return request;
}

TEST(FirstRun, SizesAreNearTheOneAsked) {
  int models = 0;
  for (double parameters = 1e6; parameters < 1.2e12; parameters *= 1.7) {
    for (const std::int64_t experts : {0, 8, 128}) {
      for (const std::int64_t vocabulary : {256, 32000, 128256}) {
        // A table alone would be more than half of it, or the experts of a second block all of it.
        if (parameters < 64.0 * static_cast<double>(vocabulary) * 4.0) continue;
        if (parameters < 3e5 * static_cast<double>(experts)) continue;
        const FirstRunRequest request = request_of(parameters, experts, vocabulary);
        if (parameters > 2e11 && experts == 0) continue;  // wider than the widest
        const ModelConfig model = sized_model(request);
        const auto total = static_cast<double>(count_parameters(model).total);
        EXPECT_NEAR(total / parameters, 1.0, 0.12) << parameters << ", " << experts << " experts, " << vocabulary;
        EXPECT_EQ(model.num_attention_heads * model.head_dim, model.hidden_size);
        EXPECT_EQ(model.num_attention_heads % model.num_key_value_heads, 0);
        const double proportion =
            static_cast<double>(model.hidden_size) / static_cast<double>(std::ssize(model.blocks));
        EXPECT_GT(proportion, 14.0) << parameters << ", " << experts << " experts, " << vocabulary;
        EXPECT_LT(proportion, 700.0) << parameters << ", " << experts << " experts, " << vocabulary;
        ++models;
      }
    }
  }
  EXPECT_GT(models, 100);
}

// Batch and learning rate by the published laws, worked out by hand for one case: 10^9 parameters or so, 20 tokens
// each.
TEST(FirstRun, BatchAndRateFollowTheCompute) {
  const Config config = first_run(request_of(1e9));
  const auto active = static_cast<double>(count_parameters(config.model).active);
  const double compute = 6.0 * active * 20.0 * active;
  const double step = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  EXPECT_NEAR(std::log2(step / (0.2920 * std::pow(compute, 0.3271))), 0.0, 0.51);
  EXPECT_NEAR(config.optimizer.learning_rate / (0.3118 / std::pow(compute, 0.125)), 1.0, 0.05);
  EXPECT_NEAR(step * static_cast<double>(config.run.steps) / (20.0 * active), 1.0, 0.01);
}

TEST(FirstRun, DataAreReadFourTimesAtMost) {
  FirstRunRequest request = request_of(1e8);
  request.data_tokens = 10'000'000;
  const Config config = first_run(request);
  const auto tokens =
      static_cast<double>(config.run.steps * config.training.global_batch_size * config.training.sequence_length);
  EXPECT_NEAR(tokens / 40e6, 1.0, 0.02);
}

TEST(FirstRun, TheTextReadsBackAsTheConfiguration) {
  for (const std::int64_t experts : {0, 16}) {
    for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
      FirstRunRequest request = request_of(2e8, experts);
      request.device = device;
      request.ranks = 8;
      request.data.split = "99,1,0";
      request.validation.split = true;
      if (device == DeviceKind::cuda) request.hardware = "h100";
      const Config config = first_run(request);
      const std::string text = first_run_toml(config, "# head\n", {{"run.steps", "a reason of its own"}});
      EXPECT_NE(text.find("# a reason of its own"), std::string::npos);
      const Config read = read_config_text(text, "first.toml").config;
      EXPECT_EQ(read.model, config.model) << text;
      EXPECT_EQ(read.training, config.training);
      EXPECT_EQ(read.data, config.data);
      EXPECT_EQ(read.validation, config.validation);
      EXPECT_EQ(read.lr_scheduler, config.lr_scheduler);
      EXPECT_EQ(read.run, config.run);
      EXPECT_EQ(read.optimizer, config.optimizer);
      EXPECT_EQ(read.hardware, config.hardware);
    }
  }
}

TEST(FirstRun, ImpossibleSizesAreRefused) {
  EXPECT_THROW(sized_model(request_of(1e4)), Error);
  EXPECT_THROW(sized_model(request_of(1e15)), Error);
  EXPECT_THROW(sized_model(request_of(2e6, 0, 128256)), Error) << "the vocabulary alone is larger";
}

}  // namespace
}  // namespace weft
