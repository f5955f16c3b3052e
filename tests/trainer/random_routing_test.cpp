// Models with experts, their data and their layouts, drawn at random. They have routers of every kind, null slots,
// capacities, balance losses and biases, padded and masked tokens. They have ranks without a target or without a token,
// and every axis, dispatch, schedule and recompute. Each that the rules accept learns what one rank learns, counts the
// same choices and stays within its plan. It goes on in another layout with the same bits. WEFT_TRIALS=N draws N in
// each part.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tests/trainer/routing_draw.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/run_steps.h"

namespace weft {
namespace {

constexpr int most_routing_ranks = 16;
constexpr int routing_parts = 8, combinations = 15;  // of a part

// What no layout changes, not in a bit.
std::string counted_text(const StepMetrics& step) {
  std::string text = fmt::format("step {}, {} tokens, {} targets", step.step, step.tokens, step.targets);
  for (const MoeMetrics& moe : step.moe) {
    text += fmt::format("; block {}: load {:a}, entropy {:a}, unused {} ({}), dropped {:a}, null {:a}, bias {:a}",
                        moe.block, moe.max_over_mean, moe.entropy, moe.unused, fmt::join(moe.unused_experts, " "),
                        moe.dropped, moe.null_share.value_or(-1.0), moe.bias_norm.value_or(-1.0));
  }
  return text;
}

// What all ranks of a run tell alike.
std::string agreed_text(const StepMetrics& step) {
  std::string text = counted_text(step) + fmt::format("; loss {:a}, norm {:a}", step.loss, step.gradient_norm);
  for (const MoeMetrics& moe : step.moe) {
    text += fmt::format("; losses {:a} {:a}, ranks {:a} {:a}", moe.auxiliary_loss, moe.z_loss, moe.busiest_rank,
                        moe.idlest_rank);
  }
  return text;
}

// A run of which every rank tells the same metrics, and holds the same copies after the last step.
LearnedRun learn_agreed(const Config& config, RunObserver observer = {}) {
  std::mutex mutex;
  std::map<std::int64_t, std::string> told;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const std::string text = agreed_text(metrics);
    const std::scoped_lock lock(mutex);
    const auto [found, fresh] = told.try_emplace(metrics.step, text);
    EXPECT_EQ(found->second, text) << "rank " << run.rank();
  };
  LearnedRun learned = learn(config, observer);
  EXPECT_TRUE(learned.faults.empty()) << learned.faults.front();
  return learned;
}

// Losses of a step without a target are not a number.
void expect_near_figure(double found, double expected, const std::string& what) {
  if (std::isnan(found) && std::isnan(expected)) return;
  EXPECT_NEAR(found, expected, 1e-5 * std::abs(expected)) << what;
}

void expect_same_step(const StepMetrics& found, const StepMetrics& expected) {
  EXPECT_EQ(counted_text(found), counted_text(expected));
  expect_near_figure(found.loss, expected.loss, "loss");
  ASSERT_EQ(found.moe.size(), expected.moe.size());
  for (std::size_t b = 0; b < expected.moe.size(); ++b) {
    expect_near_figure(found.moe[b].auxiliary_loss, expected.moe[b].auxiliary_loss, "balance loss");
    expect_near_figure(found.moe[b].z_loss, expected.moe[b].z_loss, "z loss");
  }
  ASSERT_EQ(found.prediction_losses.size(), expected.prediction_losses.size());
  for (std::size_t p = 0; p < expected.prediction_losses.size(); ++p) {
    expect_near_figure(found.prediction_losses[p], expected.prediction_losses[p], "loss of a predictor");
  }
  ASSERT_EQ(found.validation.has_value(), expected.validation.has_value());
  if (!expected.validation) return;
  EXPECT_EQ(found.validation->tokens, expected.validation->tokens);
  expect_near_figure(found.validation->loss, expected.validation->loss, "validation");
}

// Terms are added in other orders (parity_test.cpp).
void expect_same_run(const LearnedRun& many, const LearnedRun& one) {
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.gradient_norm, 1e-5);
  EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;
  for (const auto& [name, values] : one.weights) {
    if (!name.ends_with("selection_bias")) continue;
    EXPECT_EQ(many.weights.at(name), values) << name;
  }
  ASSERT_EQ(many.result.steps.size(), one.result.steps.size());
  for (std::size_t s = 0; s < one.result.steps.size(); ++s) {
    expect_same_step(many.result.steps[s], one.result.steps[s]);
  }
}

// The plan has every call. Its bytes of memory are a bound, and exact where no routing changes them.
void expect_planned(const Config& config, const LearnedRun& run) {
  const ResolvedRun resolved(config);
  const Mesh& mesh = resolved.mesh();
  std::map<CommunicationKey, std::int64_t> planned, counted;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Program program = step_program(resolved, mesh.coordinates(rank));
    const DryRun worst = dry_run(resolved.config(), mesh, program, rank, Routing::worst);
    for (const auto& [key, count] : worst.communication) planned[key] += count.count;
    const BucketBytes& measured = run.result.measured[static_cast<std::size_t>(rank)];
    EXPECT_LE(measured.total(), worst.peak.total()) << "rank " << rank;
    EXPECT_EQ(differing_static_buckets(worst.peak, measured), std::vector<Bucket>{}) << "rank " << rank;
    if (routing_decides(config)) continue;
    EXPECT_EQ(to_text(dry_peak(resolved.config(), mesh, program, rank)), to_text(measured)) << "rank " << rank;
  }
  for (const auto& [key, count] : run.result.steps.back().communication) counted[key] = count.count;
  EXPECT_EQ(counted, planned);
}

// The first configuration from a seed on that the rules accept; `seed` becomes the one behind it.
Config next_accepted(std::uint64_t& seed, const std::filesystem::path& folder) {
  while (true) {
    LayoutDraw draw(seed++);
    Config config = draw_routed_model(draw, folder);
    draw_routed_layout(draw, config);
    if (accepted(config, most_routing_ranks)) return config;
  }
}

class RandomRouting : public ::testing::TestWithParam<int> {
 protected:
  RandomRouting() { write_routed_data(folder_.path()); }
  static std::uint64_t first_seed() { return 1000 * static_cast<std::uint64_t>(GetParam()); }
  TemporaryFolder folder_;
};

TEST_P(RandomRouting, LearnsAndCountsTheSame) {
  const char* trials = std::getenv("WEFT_TRIALS");
  const int wanted = trials ? std::atoi(trials) : combinations;
  std::uint64_t seed = first_seed();
  for (int taken = 0; taken < wanted; ++taken) {
    const Config config = next_accepted(seed, folder_.path());
    SCOPED_TRACE(fmt::format("seed {}\n{}", seed - 1, drawn_text(config)));
    try {
      const LearnedRun many = learn_agreed(config);
      expect_same_run(many, learn(on_one_rank(config)));
      expect_planned(config, many);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

// Two hundred steps, the second half in another layout. It begins with the bits that the first half ended with, and
// takes the steps that one rank takes from there. No copy of a router comes apart.
TEST_P(RandomRouting, GoesOnInAnotherLayoutWithTheSameBits) {
  constexpr std::int64_t half = 100, compared = 3;
  std::uint64_t seed = 100'000 + first_seed();
  Config first;
  do {
    first = next_accepted(seed, folder_.path());
  } while (!first.model.moe.selection_bias || first.parallelism.stage_ranks() == 1);
  first.validation = {};
  first.lr_scheduler = {};  // the same rates, however long a run is
  first.run.steps = half;
  first.checkpoint.directory = (folder_ / "first").string();
  first.checkpoint.at_end = true;
  Config second = first;
  do {
    LayoutDraw draw(seed++);
    draw_routed_layout(draw, second);
  } while (!accepted(second, most_routing_ranks) || second.parallelism.stage_ranks() == 1);
  second.checkpoint.start_from = first.checkpoint.directory;
  second.checkpoint.weights_only = false;
  second.checkpoint.at_end = false;
  SCOPED_TRACE(fmt::format("{}\nthen\n{}", drawn_text(first), drawn_text(second)));
  Config one = on_one_rank(second);
  second.run.steps = 2 * half;
  second.checkpoint.directory = (folder_ / "second").string();
  one.run.steps = half + compared;
  one.checkpoint.directory = (folder_ / "one").string();

  const LearnedRun before = learn_agreed(first);
  std::mutex mutex;
  WeightCollector collector;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    const std::scoped_lock lock(mutex);
    collector.add(run.stream(), run.stages());
  };
  const LearnedRun after = learn_agreed(second, observer);
  LearnedRun begun;
  collector.finish(begun);
  EXPECT_TRUE(begun.faults.empty()) << begun.faults.front();
  EXPECT_EQ(begun.weights, before.weights);
  ASSERT_EQ(after.result.steps.size(), static_cast<std::size_t>(half));
  const LearnedRun expected = learn(one);
  ASSERT_EQ(expected.result.steps.size(), static_cast<std::size_t>(compared));
  for (std::size_t s = 0; s < compared; ++s) expect_same_step(after.result.steps[s], expected.result.steps[s]);
}

INSTANTIATE_TEST_SUITE_P(Few, RandomRouting, ::testing::Values(0));
INSTANTIATE_TEST_SUITE_P(All, RandomRouting, ::testing::Range(1, routing_parts));

// Of 120 combinations, as many as of all parts.
TEST(RandomRoutingDraws, HaveAllKinds) {
  const TemporaryFolder folder;
  std::set<std::string> kinds;
  for (int part = 0; part < routing_parts; ++part) {
    std::uint64_t seed = 1000 * static_cast<std::uint64_t>(part);
    for (int taken = 0; taken < combinations; ++taken) {
      const Config config = next_accepted(seed, folder.path());
      const MoeConfig& moe = config.model.moe;
      const Degrees& degrees = config.parallelism;
      kinds.insert(config.pipeline.schedule);
      kinds.insert(fmt::format("recompute {}", name_of(config.training.recompute)));
      kinds.insert(std::filesystem::path(config.data.train.front().path).filename().string());
      if (degrees.expert > 1) kinds.insert(fmt::format("dispatch {}", name_of(degrees.expert_dispatch)));
      if (moe.router_aux_loss_coef > 0.0) kinds.insert(fmt::format("balance of {}", name_of(moe.aux_loss)));
      if (moe.drops()) kinds.insert(fmt::format("drops by {}, pads {}", name_of(moe.drop_policy), moe.pad_to_capacity));
      if (moe.null_copies() > 0) kinds.insert(moe.drops() ? "null slots with a capacity" : "null slots");
      if (moe.topk_group < moe.n_group) kinds.insert("groups");
      if (config.model.mtp_depth > 0) kinds.insert("predictors");
      for (const auto& [name, degree] : named_degrees) {
        if (degrees.*degree > 1) kinds.insert(name);
      }
    }
  }
  // 11 schedules, 5 recomputes, 4 data sets, 3 dispatches, 3 balance losses, 4 ways to drop, 2 of null slots, groups,
  // predictors, 7 axes.
  EXPECT_EQ(kinds.size(), 41u) << fmt::format("{}", fmt::join(kinds, ", "));
}

}  // namespace
}  // namespace weft
