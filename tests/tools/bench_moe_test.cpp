// `weft bench moe`: what its products alone are of. Its times are no matter of tests, except one that is many times
// another.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <string>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;
using BenchMoe = TinyTraining;

constexpr const char* bench =
    "bench moe run.toml --warmup 0 --steps 1 --seconds 0.005 --parallelism.pipeline=1 --parallelism.tensor=1 "
    "--parallelism.data_shard=1 --parallelism.expert=1 ";

// The word behind a text.
std::string said(const std::string& output, const std::string& before) {
  const std::size_t begin = output.find(before) + before.size();
  return output.substr(begin, output.find(' ', begin) - begin);
}

// A shared expert has 4096 / (2 * 8) times the operations of a token's routed ones. The least of three times is taken:
// other programs only make it longer.
TEST_F(BenchMoe, CountsTheProductsOfTheSharedExpert) {
  const auto least_alone = [&](int width) {
    double least = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 3; ++run) {
      const auto result = weft(fmt::format("{}--json --model.moe.shared_expert_intermediate_size={}", bench, width));
      EXPECT_EQ(result.exit_code, 0) << result.messages;
      const SortedJson report = SortedJson::parse(result.output);
      const double alone = report.at("products_alone").get<double>();
      EXPECT_DOUBLE_EQ(report.at("all_over_products_alone").get<double>(), report.at("all").get<double>() / alone);
      EXPECT_EQ(report.at("most_over_products_alone"), 1.35);
      EXPECT_EQ(report.at("forced_balance"), false);
      least = std::min(least, alone);
    }
    return least;
  };
  EXPECT_GT(least_alone(4096), 4.0 * least_alone(0));
}

// No best checkpoint is saved, and no spike stops it.
TEST_F(BenchMoe, LeavesOutWhatARunDoesBetweenItsSteps) {
  const auto result = weft(std::string(bench) +
                           "--validation.data='[\"text.txt\"]' --validation.batches=1 --validation.interval=1 "
                           "--validation.keep_best=true --spikes.grad_norm=0.001 --spikes.action=stop");
  EXPECT_EQ(result.exit_code, 0) << result.messages;
}

TEST_F(BenchMoe, SaysTheRatioBesideItsBound) {
  const auto result = weft(std::string(bench) + "--model.moe.force_balance=true");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_TRUE(result.output.starts_with("model.moe.force_balance is true: ")) << result.output;
  const std::string ratio = said(result.output, "all takes "), bound = said(result.output, "times as long, ");
  // Of a ratio that is rounded to the bound, either word is right.
  if (ratio == "1.35") return;
  EXPECT_EQ(bound, std::stod(ratio) < 1.35 ? "within" : "above") << result.output;
}

}  // namespace
}  // namespace weft
