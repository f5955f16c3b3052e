// A rank that compiled another step than the others ends the run before its first step, and is named.
#include "trainer/rank/same_program.h"
#include "trainer/resolve/resolved_run.h"

#include <gtest/gtest.h>

#include <random>

#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/resolve/solved_timing.h"

namespace weft {
namespace {

constexpr Degrees eight{.pipeline = 2, .data_replicate = 2, .data_shard = 2};

Config solved(std::int64_t budget) {
  Config config = config_of({.degrees = eight, .residency = "auto", .reduction = "auto"});
  config.memory_budget = budget;
  return config;
}

// The run of `config` in which rank `odd` has a configuration of its own. Every rank must have found it for itself:
// nobody waits for the watchdog, whose 300 seconds are far beyond what a test is given.
std::string failure_with(const Config& config, const Config& altered, int odd) {
  const ResolvedRun usual(config), other(altered);
  const TokenDataset data = training_data(config);
  NvtxDomain domain;
  try {
    run_ranks(config, backend_of(config), [&](const RankContext& context) {
      RankRun run(context.world.rank() == odd ? other : usual, data, domain, context);
      ADD_FAILURE() << "rank " << context.world.rank() << " is ready to train";
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    return error.what();
  }
  ADD_FAILURE() << "nobody complained";
  return {};
}

// Two budgets, two plans: what a rank would do that solved with other sizes than the others.
TEST(SameProgram, ASolvedPlanThatIsAnotherOnOneRankEndsTheRun) {
  const Config config = solved(std::int64_t{1} << 30), altered = solved(195'000);
  const auto own = program_hashes(step_program(ResolvedRun(config), {})),
             other = program_hashes(step_program(ResolvedRun(altered), {}));
  ASSERT_NE(own[0], other[0]) << "the budgets give one plan";
  for (const int odd : {0, 3, 7}) {
    const std::string message = failure_with(config, altered, odd);
    EXPECT_NE(message.find("the ranks have compiled different steps"), std::string::npos) << message;
    EXPECT_NE(message.find(fmt::format("\n  for pipeline rank 0: rank {}, unlike ranks {}", odd, odd == 0 ? 1 : 0)),
              std::string::npos)
        << message;
  }
}

// The same of any other residency, and of lists that only one of the pipeline ranks would run.
TEST(SameProgram, AnyOtherListOnOneRankEndsTheRun) {
  const Config config = config_of({.degrees = eight, .residency = "reshard_after_use"});
  for (auto& [family, policy] : Config(config).shard_by_family) {
    if (family != Family::head && family != Family::dense) continue;
    Config altered = config;
    altered.shard_by_family.at(family).residency = {Residency::step};
    const std::string message = failure_with(config, altered, 5);
    const std::string named = "rank 5, unlike ranks 0, 1, 2, 3, 4, 6, 7";
    EXPECT_NE(message.find("\n  for pipeline rank 1: " + named), std::string::npos) << message;
    EXPECT_EQ(message.find("\n  for pipeline rank 0: " + named) == std::string::npos, family == Family::head)
        << message;
  }
}

TEST(SameProgram, NamesThoseThatDifferFromMost) {
  using Hashes = std::vector<std::vector<std::uint64_t>>;
  EXPECT_EQ(program_disagreement(Hashes(64, {1, 2, 3})), std::nullopt);
  const auto disagreement = [](const Hashes& hashes) {
    const std::string text = program_disagreement(hashes).value_or("none");
    return text.substr(std::min(text.find('\n'), text.size()));
  };
  EXPECT_EQ(disagreement({{9, 2}, {1, 2}, {1, 2}}), "\n  for pipeline rank 0: rank 0, unlike ranks 1, 2");
  // No majority: rank 0 is what others are held against.
  EXPECT_EQ(disagreement({{1, 2}, {1, 3}, {1, 3}, {1, 2}}), "\n  for pipeline rank 1: ranks 1, 2, unlike ranks 0, 3");
  EXPECT_EQ(disagreement({{1}, {2}, {3}}),
            "\n  for pipeline rank 0: rank 1, unlike rank 0\n  for pipeline rank 0: rank 2, unlike rank 0");
  Hashes many(100, {7});
  for (std::size_t rank = 0; rank < 40; ++rank) many[rank] = {8};
  const std::string text = disagreement(many);
  EXPECT_NE(text.find(" 15 and 24 more, unlike ranks 40, 41"), std::string::npos) << text;
}

// Any field of any action counts but its bytes, and so does the order of the list.
TEST(SameProgram, HashesTellListsApart) {
  const Config config = config_of({.degrees = eight, .residency = "reshard_after_use"});
  const Program program = step_program(ResolvedRun(config), {});
  const auto own = program_hashes(program);
  std::mt19937 random(11);
  const auto expect_other = [&](const auto& spoil, bool differs) {
    Program spoiled = program;
    const std::size_t row = random() % spoiled.ranks.size();
    spoil(spoiled.ranks[row], random() % (spoiled.ranks[row].size() - 1));
    const auto found = program_hashes(spoiled);
    EXPECT_EQ(found[row] != own[row], differs && spoiled.ranks[row] != program.ranks[row]);
    EXPECT_EQ(found[1 - row], own[1 - row]);
  };
  const auto raise = [](OptionalIndex& index) { index = index.value_or(-1) + 1; };
  using Actions = std::vector<Action>;
  for (int trial = 0; trial < 50; ++trial) {
    expect_other([&](Actions& actions, std::size_t i) { raise(actions[i].stage); }, true);
    expect_other([&](Actions& actions, std::size_t i) { raise(actions[i].microbatch); }, true);
    expect_other([&](Actions& actions, std::size_t i) { raise(actions[i].segment); }, true);
    expect_other([&](Actions& actions, std::size_t i) { raise(actions[i].unit); }, true);
    expect_other([&](Actions& actions, std::size_t i) { raise(actions[i].peer); }, true);
    expect_other([&](Actions& actions, std::size_t i) { actions[i].overlapped = !actions[i].overlapped; }, true);
    expect_other([&](Actions& actions, std::size_t i) { std::swap(actions[i], actions[i + 1]); }, true);
    expect_other([&](Actions& actions, std::size_t i) { actions.erase(actions.begin() + static_cast<int>(i)); }, true);
    expect_other([&](Actions& actions, std::size_t i) { ++actions[i].bytes; }, false);
  }
}

}  // namespace
}  // namespace weft
