// A search against planning every choice of its space (judge_choice: plan_run alone, no bound, no order). The tests
// hold its findings, the choices that it passes over, and its bounds to that.
#include "trainer/planning/search.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "parallel/runtime/error.h"
#include "tests/trainer/search_case.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/planning/candidate_evaluator.h"
#include "trainer/planning/search_bounds.h"

namespace weft {
namespace {

using Figures = std::pair<double, std::int64_t>;
Figures figures_of(const SearchedPlan& plan) {
  return {plan.time.seconds, plan.peak.total()};
}

TEST_P(SearchOf, FindsWhatPlanningEveryChoiceFinds) {
  const std::vector<SearchedPlan> all = all_planned();
  std::vector<SearchedPlan> fitting;
  std::ranges::copy_if(all, std::back_inserter(fitting), [](const SearchedPlan& plan) { return plan.verdict.fits(); });
  // Of plans that take as long, the one that needs least.
  std::ranges::stable_sort(fitting, std::ranges::less{}, figures_of);
  ASSERT_FALSE(fitting.empty());
  ASSERT_LT(fitting.size(), all.size()) << "memory decides nothing";

  const SearchResult found = search_plans(space_, {.top = 5});
  ASSERT_EQ(found.plans.size(), 5U);
  // Choices that come to one program are found once, as the first of them.
  std::vector<SearchedPlan> expected;
  std::set<Figures> known;
  for (const SearchedPlan& plan : fitting) {
    if (known.insert(figures_of(plan)).second) expected.push_back(plan);
  }
  SearchedPlan best = found.plans.front();
  EXPECT_TRUE(best.front) << "nothing beats what is recommended";
  best.front = false;
  EXPECT_EQ(best, expected.front());
  std::set<Figures> shown;
  for (const SearchedPlan& plan : found.plans) {
    EXPECT_TRUE(known.contains(figures_of(plan)));
    shown.insert(figures_of(plan));
  }
  auto place = expected.begin();
  for (const Figures& figures : shown) EXPECT_EQ(figures.first, (place++)->time.seconds);

  const SearchCounts& counts = found.counts;
  std::size_t sum = 0;
  for (const ChoiceOutcome outcome : all_values<ChoiceOutcome>) sum += counts[outcome];
  for (const auto& [reason, refusals] : counts.refused) sum += refusals.choices;
  for (const auto& [rule, choices] : counts.left_out) sum += choices;
  EXPECT_EQ(sum, all_choices(space_).size()) << "every choice is accounted for once";
}

TEST_P(SearchOf, FrontIsWhatNothingBeats) {
  std::set<Figures> all;
  for (const SearchedPlan& plan : all_planned()) {
    if (plan.verdict.fits()) all.insert(figures_of(plan));
  }
  std::set<Figures> front;
  for (const Figures& one : all) {
    const bool beaten = std::ranges::any_of(all, [&](const Figures& other) {
      return other != one && other.first <= one.first && other.second <= one.second;
    });
    if (!beaten) front.insert(one);
  }
  std::set<Figures> found;
  for (const SearchedPlan& plan : search_plans(space_, {.top = 1, .front_within = 1e9}).plans) {
    if (plan.front) found.insert(figures_of(plan));
  }
  EXPECT_EQ(found, front);
}

TEST_P(SearchOf, BoundsHold) {
  expect_bounds();
}

TEST_P(SearchOf, ReaderAcceptsWhatTheSearchDoes) {
  for (const SearchChoice& choice : all_choices(space_)) {
    const JudgedChoice judged = judge_choice(space_, choice);
    if (!judged.plan) continue;
    const Config read = read_config(file_, words_of(space_, choice)).config;
    ASSERT_EQ(read, config_of(space_, choice));
  }
  for (const SearchedPlan& plan : search_plans(space_, {.top = 5}).plans) {
    const ResolvedConfig resolved = read_config(file_, words_of(space_, plan.choice));
    for (const Config& config : {resolved.config, read_config_text(resolved.toml, "best.toml").config}) {
      const RunPlan again = plan_run(config, hardware_of(config));
      EXPECT_EQ(again.time.seconds, plan.time.seconds);
      EXPECT_EQ(again.peak(), plan.peak);
      EXPECT_EQ(again.layout, plan.layout);
    }
  }
}

// With time enough, what a search finds without a limit. With none, nothing, and it says so.
TEST_P(SearchOf, LimitOfTimeOnlyEndsIt) {
  all_planned();
  const SearchResult free = search_plans(space_, {.top = 5, .front_within = 2.0});
  const SearchResult slow = search_plans(space_, {.top = 5, .front_within = 2.0, .seconds = 1e6});
  EXPECT_EQ(slow.plans, free.plans);
  EXPECT_EQ(slow.counts[ChoiceOutcome::open], 0U);
  EXPECT_FALSE(slow.not_below);
  const SearchResult none = search_plans(space_, {.top = 5, .seconds = 0.0});
  EXPECT_TRUE(none.plans.empty());
  const KindsOfLayout kinds = compare_kinds(space_, none, {.seconds = 0.0});
  EXPECT_EQ(kinds.data_sharding.stopped, kinds.data_sharding.searched);
  EXPECT_EQ(kinds.hybrid.stopped, kinds.hybrid.searched);
  const bool named = kinds.decision().find("before the time was up") != std::string::npos;
  EXPECT_EQ(named, kinds.data_sharding.searched) << kinds.decision();
  EXPECT_EQ(none.not_below, 0.0);
  for (const double seconds : {0.02, 0.1, 0.5}) {
    const SearchResult stopped = search_plans(space_, {.top = 5, .seconds = seconds});
    for (const SearchedPlan& plan : stopped.plans) EXPECT_GE(plan.time.seconds, free.plans.front().time.seconds);
    EXPECT_EQ(stopped.not_below.has_value(), stopped.counts[ChoiceOutcome::open] > 0);
    const double fastest = stopped.plans.empty() ? HUGE_VAL : stopped.plans.front().time.seconds;
    if (!stopped.not_below || *stopped.not_below > fastest) {
      EXPECT_EQ(fastest, free.plans.front().time.seconds);
    } else {
      EXPECT_LE(*stopped.not_below, free.plans.front().time.seconds);
    }
  }
}

TEST_P(SearchOf, NumberOfThreadsChangesNothing) {
  all_planned();
  const SearchResult one = search_plans(space_, {.top = 5, .front_within = 2.0, .threads = 1});
  const SearchResult three = search_plans(space_, {.top = 5, .front_within = 2.0, .threads = 3});
  EXPECT_EQ(one.plans, three.plans);
  EXPECT_EQ(one.counts, three.counts);
}

// Of every plan with degrees of one kind: the fastest that fits, or the one of least memory.
std::optional<SearchedPlan> best_planned(const SearchSpace& space, const std::vector<SearchedPlan>& all, bool alone) {
  std::optional<SearchedPlan> best;
  for (const SearchedPlan& plan : all) {
    const Degrees& mesh = space.meshes[plan.choice.mesh];
    const bool data_only = mesh.data_shard == space.world;
    const bool split = mesh.stage_ranks() != mesh.data() || mesh.pipeline * mesh.expert * mesh.expert_tensor > 1;
    if (data_only && !split ? !alone : alone || !split) continue;
    const bool better = !best                                         ? true
                        : plan.verdict.fits() != best->verdict.fits() ? plan.verdict.fits()
                        : plan.verdict.fits()                         ? plan.time.seconds < best->time.seconds
                                                                      : plan.peak.total() < best->peak.total();
    if (better) best = plan;
  }
  return best;
}

TEST_P(SearchOf, SetsDataShardingBesideTheBestHybrid) {
  const std::vector<SearchedPlan> all = all_planned();
  const KindsOfLayout kinds = compare_kinds(space_, search_plans(space_, {.top = 1}), {});
  for (const bool alone : {true, false}) {
    const BestOfKind& found = alone ? kinds.data_sharding : kinds.hybrid;
    const std::optional<SearchedPlan> expected = best_planned(space_, all, alone);
    ASSERT_EQ(found.plan.has_value(), expected.has_value()) << alone;
    if (!expected) continue;
    EXPECT_EQ(found.fits(), expected->verdict.fits()) << alone;
    if (found.fits()) {
      EXPECT_EQ(found.plan->time.seconds, expected->time.seconds) << alone;
    } else {
      EXPECT_EQ(found.plan->peak().total(), expected->peak.total()) << alone;
    }
    // Terms add up to the step, and one of them is the bubble that plans tell.
    double sum = 0.0;
    for (const TermOfKinds& term : kinds.terms) {
      const double seconds = alone ? term.data_sharding : term.hybrid;
      sum += seconds;
      if (term.what == "bubble") {
        EXPECT_NEAR(seconds, found.plan->time.bubble * found.plan->time.seconds, 1e-9 * found.plan->time.seconds);
      }
    }
    if (!kinds.terms.empty()) {
      EXPECT_NEAR(sum, found.plan->time.seconds, 1e-9 * sum) << alone;
    }
  }
  if (!kinds.data_sharding.plan || !kinds.hybrid.plan) return;
  ASSERT_FALSE(kinds.terms.empty());
  for (const TermOfKinds& term : kinds.terms) {
    EXPECT_LE(std::abs(term.hybrid - term.data_sharding),
              std::abs(kinds.terms.front().hybrid - kinds.terms.front().data_sharding));
  }
  const bool both = kinds.data_sharding.fits() && kinds.hybrid.fits();
  EXPECT_TRUE(kinds.decision().starts_with(both ? kinds.terms.front().what + ": " : "memory: ")) << kinds.decision();
}

INSTANTIATE_TEST_SUITE_P(
    All, SearchOf,
    testing::Values(SearchCase{"dense", "d*4", "h100", 8, {"schedule=1f1b,zbv,dualpipev", "microbatch_size=1,2"}},
                    SearchCase{"tied", "d*4", "l40s", 8, {"schedule=interleaved,zb_h1", "microbatch_size=1"}, true},
                    SearchCase{"moe",
                               "d e*2 d",
                               "a100-80gb",
                               8,
                               {"schedule=1f1b,looped_bfs", "chunks=1,2", "microbatch_size=1", "context=1",
                                "recompute=none,full"}},
                    SearchCase{"experts_again",
                               "d e*2 d",
                               "a100-80gb",
                               8,
                               {"schedule=1f1b", "chunks=1", "microbatch_size=1", "context=1", "tensor=1,2"}},
                    SearchCase{"predictor",
                               "d e m",
                               "h100",
                               8,
                               {"schedule=1f1b", "microbatch_size=1", "context=1", "recompute=none,full"}},
                    SearchCase{"overlapped",
                               "e*8",
                               "b200",
                               32,
                               {"schedule=1f1b,dualpipev", "microbatch_size=1", "context=1", "tensor=1", "pipeline=2",
                                "expert=16", "recompute=none,keep_dispatch"},
                               false,
                               {"--model.hidden_size=2048", "--model.moe.num_experts=16",
                                "--model.moe.num_experts_per_tok=8", "--model.moe.moe_intermediate_size=512",
                                "--training.sequence_length=4096", "--training.global_batch_size=512"}},
                    SearchCase{"two_nodes", "d*4", "h100", 16, {"schedule=1f1b", "microbatch_size=1", "context=1,2"}}),
    [](const auto& search) { return search.param.name; });

// Expert groups of 16 ranks fill two nodes of eight, those of 8 ranks one. The words for a dispatch are read as it was
// searched.
TEST(Search, OffersADispatchBetweenNodesToExpertsThatFillSeveral) {
  const TemporaryFolder folder;
  const std::string file = (folder / "run.toml").string();
  std::string text = text_of({.name = "", .layers = "e*4", .hardware = "h100", .axes = {}});
  text.replace(text.find("num_experts = 4"), 15, "num_experts = 16");
  write_file(file, text);
  const auto space = [&](std::vector<std::string> axes) {
    return search_space(file, {}, {.world = 16, .axes = parse_search_axes(axes)});
  };
  std::map<int, std::set<std::pair<ExpertDispatch, int>>> by_expert;
  for (const Degrees& mesh : space({"pipeline=1", "tensor=1", "context=1", "expert_tensor=1"}).meshes) {
    by_expert[mesh.expert].insert({mesh.expert_dispatch, mesh.expert_nodes});
  }
  using Dispatches = std::set<std::pair<ExpertDispatch, int>>;
  const Dispatches straight = {{ExpertDispatch::all_to_all, 1}};
  for (const int expert : {1, 2, 4, 8}) EXPECT_EQ(by_expert[expert], straight) << expert;
  EXPECT_EQ(by_expert[16], (Dispatches{{ExpertDispatch::all_to_all, 1}, {ExpertDispatch::hierarchical, 2}}));

  const SearchSpace named = space({"expert=2,16", "expert_dispatch=hierarchical,all_gather"});
  for (const SearchChoice& choice : all_choices(named)) {
    const Config config = config_of(named, choice, ChoiceStep::mesh);
    EXPECT_NE(config.parallelism.expert_dispatch, ExpertDispatch::all_to_all);
    if (refusal(named, ChoiceStep::mesh, config) ||
        choice.microbatch + choice.order + choice.policy + choice.recompute > 0) {
      continue;
    }
    EXPECT_EQ(read_config(file, words_of(named, choice)).config.parallelism, config.parallelism);
  }
}

// With one microbatch a step, its reduction is that of the last one.
TEST(Search, ShowsOneRowForTheReductionsOfOneMicrobatch) {
  TemporaryFolder folder;
  const std::string file = (folder / "run.toml").string();
  write_file(file, text_of({"", "d e", "h100", 8, {}}));
  for (const std::string pipeline : {"1", "2"}) {
    const SearchSpace space = search_space(
        file, {}, {.world = 8, .axes = parse_search_axes({"pipeline=" + pipeline, "tensor=1", "microbatch_size=4,8"})});
    std::map<SearchChoice, std::set<Figures>> shown;  // by a choice with the first policy of the same residency
    std::size_t single = 0;
    for (const SearchedPlan& plan : search_plans(space, {.top = 1000}).plans) {
      if (config_of(space, plan.choice).microbatches() > 1) continue;
      ++single;
      const SearchedPolicy& own = space.policies[plan.choice.policy];
      const auto alike = std::ranges::find_if(space.policies, [&](const SearchedPolicy& policy) {
        return policy.strategy == own.strategy && policy.residency == own.residency;
      });
      SearchChoice choice = plan.choice;
      choice.policy = static_cast<std::size_t>(alike - space.policies.begin());
      EXPECT_TRUE(shown[choice].insert(figures_of(plan)).second)
          << fmt::format("{}", fmt::join(words_of(space, plan.choice), " "));
    }
    EXPECT_GT(single, 10u);
  }
}

// A search never does worse than the configuration that it is given for want of looking at its sizes.
TEST(Search, LooksAtTheSizesOfTheConfiguration) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "run.toml";
  std::ofstream(file) << planned_run("d*6", "h100", false, "");
  const auto space_of = [&](const Overrides& words, const std::vector<std::string>& axes = {}) {
    return search_space(file, words, {.world = 4, .axes = parse_search_axes(axes)});
  };
  const Overrides odd = {"--training.global_batch_size=36", "--training.microbatch_size=9",
                         "--pipeline.schedule=interleaved", "--pipeline.chunks=3"};
  EXPECT_EQ(space_of(odd).microbatch_sizes, (std::vector{1, 2, 3, 4, 6, 9}));
  std::set<int> chunks;
  for (const SearchedOrder& order : space_of(odd).orders) chunks.insert(order.chunks);
  EXPECT_EQ(chunks, (std::set{1, 2, 3, 4, 8}));
  EXPECT_EQ(space_of(odd, {"microbatch_size=2"}).microbatch_sizes, std::vector{2});
  const Overrides prime = {"--training.global_batch_size=28", "--training.microbatch_size=7"};
  const SearchSpace space = space_of(prime, {"schedule=1f1b", "tensor=1", "context=1"});
  const double found = search_plans(space, {.top = 1}).plans.at(0).time.seconds;
  for (const std::string residency : {"step", "reshard_after_use"}) {
    Overrides words = prime;
    words.insert(words.end(), {"--parallelism.data_shard=4", "--shard.residency=" + residency});
    EXPECT_LE(found, plan_run(read_config(file, words).config, space.hardware).time.seconds) << residency;
  }
}

TEST(Search, SaysWhatIsLeastWhereNothingFits) {
  TemporaryFolder folder;
  const std::string file = (folder / "run.toml").string();
  write_file(file, text_of({"", "d*4", "h100", 8, {}}));
  SearchSpace space =
      search_space(file, {}, {.world = 4, .axes = parse_search_axes({"schedule=1f1b", "microbatch_size=1,2"})});
  space.hardware.memory = Figure{space.hardware.reserved_memory.value + 0x1p20, "a MiB beside what is reserved"};
  const SearchResult result = search_plans(space, {.top = 3});
  EXPECT_TRUE(result.plans.empty());
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const SearchChoice& choice : all_choices(space)) {
    if (const auto judged = judge_choice(space, choice); judged.plan) {
      EXPECT_FALSE(judged.plan->verdict.fits());
      least = std::min(least, judged.plan->peak.total());
    }
  }
  ASSERT_TRUE(result.least);
  EXPECT_EQ(result.least->peak.total(), least);
}

// A table has seconds of its own, which a model of the hardware does not bound: here they are far less.
TEST(Search, FindsTheFastestByATableOfCosts) {
  TemporaryFolder folder;
  const std::string file = (folder / "run.toml").string(), costs = (folder / "costs.toml").string();
  write_file(file, text_of({"", "d*4", "h100", 8, {}}));
  write_file(costs, R"([segments]
"*" = { forward = 1e-9, backward_input = 1e-9, backward_weight = 1e-9 }
[units]
"*" = { gather = 1e-9, reduce = 1e-9 }
[messages]
"*" = 1e-9
)");
  const SearchSpace space =
      search_space(file, {"--pipeline.costs=" + costs},
                   {.world = 4, .axes = parse_search_axes({"schedule=1f1b,zb_h1", "recompute=none"})});
  double fastest = std::numeric_limits<double>::infinity();
  for (const SearchChoice& choice : all_choices(space)) {
    const auto judged = judge_choice(space, choice);
    if (judged.plan && judged.plan->verdict.fits()) fastest = std::min(fastest, judged.plan->time.seconds);
  }
  EXPECT_EQ(search_plans(space, {.top = 1}).plans.front().time.seconds, fastest);
}

TEST(Search, RefusesAxesThatAreNone) {
  const auto message = [](const std::string& word) {
    try {
      parse_search_axes({word});
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return std::string(error.what());
    }
  };
  EXPECT_NE(message("tensr=1").find("is no axis"), std::string::npos);
  EXPECT_NE(message("tensor").find("has no values"), std::string::npos);
  EXPECT_NE(message("tensor=1,1").find("twice"), std::string::npos);
  EXPECT_NE(message("tensor=1,").find("empty"), std::string::npos);
  EXPECT_NE(message("recompute=some").find("some"), std::string::npos);
  EXPECT_NE(message("schedule=own.csv").find("a file has its own numbers"), std::string::npos);
  EXPECT_EQ(message("pipeline.schedule=1f1b,zbv"), "accepted");
}

}  // namespace
}  // namespace weft
