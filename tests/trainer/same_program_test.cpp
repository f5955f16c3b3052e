// A rank that read another configuration than the others, or compiled another step, ends the run before its first step,
// and is named.
#include "trainer/rank/same_program.h"
#include "trainer/resolve/resolved_run.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "parallel/comm/local.h"
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

void expect_said(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << "\nin: " << message;
}

struct OddKey {
  const char* key;
  std::function<void(Config&)> change;
};

// Only the last of these keys changes the list of actions. Another run.steps would end in a timeout.
TEST(SameProgram, AnyOtherKeyOnOneRankEndsTheRunAndIsNamed) {
  const OddKey keys[] = {
      {"run.steps", [](Config& config) { ++config.run.steps; }},
      {"run.seed", [](Config& config) { ++config.run.seed; }},
      {"optimizer.learning_rate", [](Config& config) { config.optimizer.learning_rate *= 2.0; }},
      {"model.moe.router_aux_loss_coef", [](Config& config) { config.model.moe.router_aux_loss_coef += 0.125; }},
      {"checkpoint.interval", [](Config& config) { ++config.checkpoint.interval; }},
      {"metrics.interval", [](Config& config) { ++config.metrics.interval; }},
      {"shard.head.residency",
       [](Config& config) { config.shard_by_family.at(Family::head).residency = {Residency::step}; }},
  };
  const Config config = config_of({.layers = "d e", .degrees = eight, .residency = "reshard_after_use"});
  for (const OddKey& odd : keys) {
    Config altered = config;
    odd.change(altered);
    expect_said(failure_with(config, altered, 5),
                {"the configuration differs between ranks", "\n  rank 5, unlike ranks 0, 1, 2, 3, 4, 6, 7\n",
                 fmt::format("\n  from rank 0 to rank 5: {} ", odd.key)});
  }
}

// Two budgets, two plans: what a rank would do that solved with other sizes than the others, of one configuration.
TEST(SameProgram, ASolvedPlanThatIsAnotherOnOneRankEndsTheRun) {
  const Program usual = step_program(ResolvedRun(solved(std::int64_t{1} << 30)), {}),
                other = step_program(ResolvedRun(solved(195'000)), {});
  ASSERT_NE(program_hash(usual), program_hash(other)) << "the budgets give one plan";
  for (const int odd : {0, 3, 7}) {
    try {
      run_local_ranks(8, [&](Communicator& world) {
        require_same_program(world.rank() == odd ? other : usual, "one configuration", world);
        ADD_FAILURE() << "rank " << world.rank() << " goes on";
      });
    } catch (const Error& error) {
      expect_said(error.what(), {"the compiled step differs between ranks",
                                 fmt::format("\n  rank {}, unlike ranks {}", odd, odd == 0 ? 1 : 0)});
    }
  }
}

TEST(SameProgram, NamesThoseThatDifferFromMost) {
  using Hashes = std::vector<ComparedHashes>;
  EXPECT_FALSE(find_disagreement(Hashes(64, {1, 2, 3})));
  const auto ranks = [](const Hashes& hashes, std::size_t part) {
    const Disagreement found = find_disagreement(hashes).value_or(Disagreement{99, 0, 0, "none"});
    EXPECT_EQ(found.part, part);
    return found.ranks;
  };
  EXPECT_EQ(ranks({{9, 2, 0}, {1, 2, 0}, {1, 2, 0}}, 0), "\n  rank 0, unlike ranks 1, 2");
  // No majority: rank 0 is what others are held against.
  EXPECT_EQ(ranks({{1, 2, 0}, {1, 3, 5}, {1, 3, 5}, {1, 2, 0}}, 1), "\n  ranks 1, 2, unlike ranks 0, 3");
  EXPECT_EQ(ranks({{0, 0, 1}, {0, 0, 2}, {0, 0, 3}}, 2), "\n  rank 1, unlike rank 0\n  rank 2, unlike rank 0");
  Hashes many(100, {7, 1, 1});
  for (std::size_t rank = 0; rank < 40; ++rank) many[rank][0] = 8;
  const std::string text = ranks(many, 0);
  EXPECT_NE(text.find(" 15 and 24 more, unlike ranks 40, 41"), std::string::npos) << text;
  const Disagreement found = find_disagreement(many).value();
  EXPECT_EQ(std::pair(found.usual, found.other), std::pair(40, 0));
}

// Any field of any action counts but its bytes, and so does the order of the list.
TEST(SameProgram, HashesTellListsApart) {
  const Config config = config_of({.degrees = eight, .residency = "reshard_after_use"});
  const Program program = step_program(ResolvedRun(config), {});
  const std::uint64_t own = program_hash(program);
  std::mt19937 random(11);
  const auto expect_other = [&](const auto& spoil, bool differs) {
    Program spoiled = program;
    const std::size_t row = random() % spoiled.ranks.size();
    spoil(spoiled.ranks[row], random() % (spoiled.ranks[row].size() - 1));
    EXPECT_EQ(program_hash(spoiled) != own, differs && spoiled.ranks[row] != program.ranks[row]);
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
