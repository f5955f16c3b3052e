// The noise of a router's input belongs to a token of the run's text. Every layout and microbatch size draws the same,
// and only training draws any.
#include <gtest/gtest.h>

#include "tests/trainer/tiny_layout.h"
#include "trainer/data/data.h"

namespace weft {
namespace {

Config noisy(const TinyLayout& layout, std::int64_t microbatch = 1) {
  Config config = config_of(layout);
  config.model.moe.router_jitter_noise = 0.3;
  config.training.microbatch_size = microbatch;
  return config;
}

TEST(RouterNoise, IsTheSameInEveryLayout) {
  const std::string layers = "d e d e";
  const LearnedRun one = learn(noisy({.layers = layers}));
  EXPECT_NE(one.losses, learn(config_of({.layers = layers})).losses);
  const TinyLayout layouts[] = {
      {.name = "tp2_ep2", .layers = layers, .degrees = {.data_shard = 2, .tensor = 2, .expert = 2}},
      {.name = "cp2", .layers = layers, .degrees = {.data_shard = 2, .context = 2}},
      {.name = "pp2", .layers = layers, .degrees = {.pipeline = 2, .data_replicate = 2}},
      {.name = "zbv", .layers = layers, .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2},
      {.name = "full", .layers = layers, .degrees = {.pipeline = 2}, .recompute = Recompute::full},
  };
  for (const TinyLayout& layout : layouts) {
    for (const std::int64_t microbatch : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, microbatches of {}", layout.name, microbatch));
      const RunDifference apart = difference(learn(noisy(layout, microbatch)), one);
      EXPECT_LT(apart.loss, 1e-5);
      EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;
    }
  }
}

TEST(RouterNoise, KeysAreOfTheSampleAndItsPosition) {
  std::vector<std::int32_t> first(8), second(8), again(8), other(8);
  write_noise_keys(7, 3, first);
  write_noise_keys(7, 4, second);
  write_noise_keys(7, 3, again);
  write_noise_keys(8, 3, other);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, second);
  EXPECT_NE(first, other);
}

TEST(RouterNoise, TakesNoRoomWhereThereIsNone) {
  EXPECT_EQ(noisy({.layers = "d e"}).text_parts().count(), 3);
  EXPECT_EQ(noisy({.layers = "d e"}).held_out_parts().count(), 2);
  EXPECT_EQ(noisy({.layers = "d*2"}).text_parts().count(), 2);
  EXPECT_EQ(config_of({.layers = "d e"}).text_parts().count(), 2);
}

}  // namespace
}  // namespace weft
