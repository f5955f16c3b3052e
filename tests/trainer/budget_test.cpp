// shard.memory_budget over every shipped configuration: what the fullest rank takes by a dry run, which equals the ledger
// of a run to the byte (dry_run_test.cpp), stays within the budget from the smallest that is accepted up.
#include <gtest/gtest.h>

#include <filesystem>

#include "parallel/runtime/refusal.h"
#include "trainer/config/config_reader.h"
#include "trainer/rank_classes.h"

namespace weft {
namespace {

Overrides solved(const std::string& recompute, std::int64_t budget) {
  Overrides words = {"--training.recompute=" + recompute, fmt::format("--shard.memory_budget={}", budget)};
  for (const char* section : {"shard", "shard.dense", "shard.experts", "shard.embedding", "shard.head", "shard.root"}) {
    for (const char* value : {"strategy=full_shard", "residency=auto", "reduction=auto", "lookahead=1",
                              "accumulation=unsharded"}) {
      words.push_back(fmt::format("--{}.{}", section, value));
    }
  }
  return words;
}

class BudgetOfShippedConfigs : public ::testing::TestWithParam<const char*> {};

TEST_P(BudgetOfShippedConfigs, IsKeptFromTheSmallestUp) {
  const auto file = std::filesystem::path(WEFT_SOURCE_DIR) / "configs" / fmt::format("{}.toml", GetParam());
  for (const std::string recompute : {"none", "full"}) {
    const auto refused = refusal_of([&] { ResolvedRun{read_config(file, solved(recompute, 1)).config}; });
    ASSERT_TRUE(refused.has_value());
    const std::string_view mark = "the smallest budget that does is ";
    ASSERT_NE(refused->find(mark), std::string::npos) << *refused;
    const std::int64_t smallest = std::stoll(refused->substr(refused->find(mark) + mark.size()));
    for (const double share : {1.0, 1.05, 1.2, 1.5}) {
      const auto budget = static_cast<std::int64_t>(share * static_cast<double>(smallest));
      SCOPED_TRACE(fmt::format("recompute {}, {} x {} bytes", recompute, share, smallest));
      const ResolvedRun run(read_config(file, solved(recompute, budget)).config);
      EXPECT_LE(fullest_peak(run).total(), budget);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BudgetOfShippedConfigs,
                         ::testing::Values("bench_cpu", "h200_dense_1_5b", "h200_dense_7b", "h200_moe_8x1b", "layouts",
                                           "layouts_h200", "moe_1024", "plan_7b_2_nodes", "plan_7b_long",
                                           "plan_llama3_70b", "plan_llama3_8b", "quickstart", "strategies"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace weft
