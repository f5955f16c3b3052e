// shard.memory_budget over every shipped configuration, from the smallest budget that is accepted up. The fullest rank
// stays within it by a dry run, which equals the ledger of a run to the byte (dry_run_test.cpp).
#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

Overrides solved(const std::string& recompute, std::int64_t budget) {
  Overrides words = {"--training.recompute=" + recompute, fmt::format("--shard.memory_budget={} B", budget)};
  for (const char* section : {"shard", "shard.dense", "shard.experts", "shard.embedding", "shard.head", "shard.root"}) {
    for (const char* value :
         {"strategy=full_shard", "residency=auto", "reduction=auto", "lookahead=1", "accumulation=unsharded"}) {
      words.push_back(fmt::format("--{}.{}", section, value));
    }
  }
  return words;
}

// From the smallest budget that `words` have to the largest of `shares` of it.
void expect_kept(const char* config, const Overrides& more, const std::string& recompute,
                 std::initializer_list<double> shares) {
  const auto file = std::filesystem::path(WEFT_SOURCE_DIR) / "configs" / fmt::format("{}.toml", config);
  const auto resolved = [&](std::int64_t budget) {
    Overrides words = solved(recompute, budget);
    words.insert(words.end(), more.begin(), more.end());
    return read_config(file, words).config;
  };
  const auto refused = refusal_of([&] { ResolvedRun{resolved(1)}; });
  ASSERT_TRUE(refused.has_value());
  const std::string_view mark = "the smallest budget that does is ";
  ASSERT_NE(refused->find(mark), std::string::npos) << *refused;
  const std::int64_t smallest = std::stoll(refused->substr(refused->find(mark) + mark.size()));
  for (const double share : shares) {
    const auto budget = static_cast<std::int64_t>(share * static_cast<double>(smallest));
    SCOPED_TRACE(fmt::format("recompute {}, {} x {} bytes", recompute, share, smallest));
    EXPECT_LE(fullest_peak(ResolvedRun(resolved(budget))).total(), budget);
  }
}

class BudgetOfShippedConfigs : public ::testing::TestWithParam<const char*> {};

TEST_P(BudgetOfShippedConfigs, IsKeptFromTheSmallestUp) {
  for (const char* recompute : {"none", "full"}) expect_kept(GetParam(), {}, recompute, {1.0, 1.05, 1.2, 1.5});
}

INSTANTIATE_TEST_SUITE_P(All, BudgetOfShippedConfigs,
                         ::testing::Values("bench_cpu", "h100_dense_1_5b", "h100_dense_3b", "h100_moe_8x500m",
                                           "h200_dense_1_5b", "h200_dense_7b", "h200_moe_8x1b", "hybrid", "layouts",
                                           "layouts_h200", "moe_1024", "plan_7b_2_nodes", "plan_7b_long",
                                           "plan_bamba_9b", "plan_llama3_70b", "plan_llama3_8b", "quickstart",
                                           "strategies"),
                         [](const auto& instance) { return std::string(instance.param); });

// Dealing counts routed tokens at their bound, 33 GiB here; what the fastest layout keeps moves no block.
TEST(BudgetOfRoutedExperts, LeavesTheFastestLayoutWhereItIsKept) {
  const auto file = std::filesystem::path(WEFT_SOURCE_DIR) / "configs" / "layouts_h200.toml";
  const ResolvedRun budgeted(read_config(file, {"--shard.residency=auto", "--shard.memory_budget=\"18 GiB\""}).config);
  EXPECT_EQ(budgeted.layout(), ResolvedRun(read_config(file).config).layout());
  EXPECT_LE(fullest_peak(budgeted).total(), std::int64_t{18} << 30);
}

// Six seconds each, so fewer of them.
TEST(BudgetOfATrillionParameters, IsKeptFromTheSmallestUp) {
  expect_kept("plan_1t_moe", {}, "none", {1.0, 1.2});
  expect_kept("plan_1t_moe", {}, "full", {1.0});
}

class BudgetOfSchedules : public ::testing::TestWithParam<std::tuple<const char*, std::string_view>> {};

TEST_P(BudgetOfSchedules, IsKeptFromTheSmallestUp) {
  const auto [config, schedule] = GetParam();
  const Overrides words = {fmt::format("--pipeline.schedule={}", schedule),
                           fmt::format("--pipeline.chunks={}", find_schedule(schedule).shown_chunks()),
                           "--pipeline.layout=auto"};
  for (const char* recompute : {"none", "full"}) expect_kept(config, words, recompute, {1.0, 1.05, 1.2, 1.5});
}

std::vector<std::string_view> names_of_schedules() {
  std::vector<std::string_view> names;
  for (const Schedule& schedule : schedules()) names.push_back(schedule.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, BudgetOfSchedules,
                         ::testing::Combine(::testing::Values("quickstart", "layouts", "plan_llama3_8b"),
                                            ::testing::ValuesIn(names_of_schedules())),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", std::get<0>(instance.param), std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace weft
