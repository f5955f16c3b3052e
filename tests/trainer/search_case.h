// A space of choices to search, all of them planned one by one, and the bounds of each held to its plan.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/planned_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/planning/candidate_evaluator.h"
#include "trainer/planning/search.h"
#include "trainer/planning/search_bounds.h"

namespace weft {

struct SearchCase {
  std::string name, layers, hardware;
  int world = 8;
  std::vector<std::string> axes;
  bool tied = false;
  Overrides words = {};  // beside those of the search
};

inline void PrintTo(const SearchCase& search, std::ostream* out) {
  *out << search.name;
}

inline std::string text_of(const SearchCase& search) {
  return planned_run(search.layers, search.hardware, search.tied, "");
}

// One choice alone, without bounds: its plan with the layout that the run itself deals, or the message of the rule that
// refuses it.
struct JudgedChoice {
  std::optional<SearchedPlan> plan;
  std::string refused;
};
inline JudgedChoice judge_choice(const SearchSpace& space, const SearchChoice& choice) {
  JudgedChoice judged;
  for (const ChoiceStep step : {ChoiceStep::mesh, ChoiceStep::microbatch, ChoiceStep::order, ChoiceStep::policy}) {
    const Config config = config_of(space, choice, step);
    auto message = refusal(space, step, config);
    if (!message) message = left_out(space, step, config);
    if (!message) continue;
    judged.refused = *message;
    return judged;
  }
  Config config = config_of(space, choice, ChoiceStep::policy);
  config.pipeline.layout = "auto";
  const RunPlan plan = plan_run(config, space.hardware, PlanRoutings::even);
  judged.plan = SearchedPlan{choice, plan.layout, plan.time, plan.peak(), plan.verdict};
  return judged;
}

// All choices of the space, in its order.
inline std::vector<SearchChoice> all_choices(const SearchSpace& space) {
  std::vector<SearchChoice> choices;
  for (std::size_t mesh = 0; mesh < space.meshes.size(); ++mesh) {
    for (std::size_t size = 0; size < space.microbatch_sizes.size(); ++size) {
      for (const std::size_t order : space.orders_of(space.meshes[mesh].pipeline)) {
        for (std::size_t policy = 0; policy < space.policies.size(); ++policy) {
          for (std::size_t recompute = 0; recompute < space.recomputes.size(); ++recompute) {
            choices.push_back({mesh, size, order, policy, recompute});
          }
        }
      }
    }
  }
  return choices;
}

class SearchOf : public testing::TestWithParam<SearchCase> {
 protected:
  SearchOf() {
    write_file(file_, text_of(GetParam()));
    space_ =
        search_space(file_, GetParam().words, {.world = GetParam().world, .axes = parse_search_axes(GetParam().axes)});
  }

  // Every choice that no rule refuses, planned by itself, in the order of the space. Half of them fit: the card has as
  // much as those of less than the median need.
  std::vector<SearchedPlan> all_planned() {
    std::vector<SearchedPlan> plans;
    std::vector<std::int64_t> peaks;
    for (const SearchChoice& choice : all_choices(space_)) {
      if (auto judged = judge_choice(space_, choice); judged.plan) plans.push_back(*judged.plan);
    }
    for (const SearchedPlan& plan : plans) peaks.push_back(plan.peak.total());
    std::ranges::sort(peaks);
    const double needed = static_cast<double>(peaks[peaks.size() / 2]) + space_.hardware.reserved_memory.value;
    space_.hardware.memory = Figure{std::ceil(needed / Verdict::limit), "the median of this test"};
    for (SearchedPlan& plan : plans) plan.verdict = judge(space_.hardware, plan.peak);
    return plans;
  }

  void expect_bounds();

  TemporaryFolder folder_;
  std::string file_ = (folder_ / "run.toml").string();
  SearchSpace space_;
};

// By which choices are passed over: never more than the plan.
inline void SearchOf::expect_bounds() {
  std::map<std::pair<std::size_t, std::size_t>, double> fastest;  // by mesh and microbatch
  KnownPieces known(space_.hardware);
  for (const SearchedPlan& plan : all_planned()) {
    double& least_seconds = fastest.try_emplace({plan.choice.mesh, plan.choice.microbatch}, HUGE_VAL).first->second;
    least_seconds = std::min(least_seconds, plan.time.seconds);
    const Config config = config_of(space_, plan.choice);
    const ModelPieces pieces = model_pieces(config, space_.hardware);
    const SearchedPolicy& policy = space_.policies[plan.choice.policy];
    ASSERT_EQ(known.of(config, policy.strategy + " " + policy.reduction), pieces);
    const LeastTaken mean = least_of_any_order(config, pieces, config.stages()),
                     any_layout = least_of_any_layout(config, pieces),
                     dealt = least_of_any_list(config, pieces, stage_layout(config)),
                     least = least_taken(config, pieces, stage_layout(config));
    const std::string what = fmt::format("{}", fmt::join(words_of(space_, plan.choice), " "));
    ASSERT_LE(mean.seconds, any_layout.seconds) << what;
    ASSERT_LE(any_layout.seconds, plan.time.seconds) << what;
    ASSERT_LE(dealt.seconds, plan.time.seconds) << what;
    ASSERT_LE(dealt.static_bytes, least.static_bytes) << what;
    ASSERT_LE(least.seconds, plan.time.seconds) << what;
    ASSERT_LE(mean.static_bytes, least.static_bytes) << what;
    ASSERT_LE(mean.bytes, plan.peak.total()) << what;
    ASSERT_LE(least.bytes, plan.peak.total()) << what;
    if (!pieces.separable) continue;
    std::int64_t kept = 0;
    for (const Bucket bucket : {Bucket::sharded_parameters, Bucket::replicated_parameters, Bucket::sharded_gradients,
                                Bucket::optimizer_state}) {
      kept += plan.peak[bucket];
    }
    // The fullest rank need not be the one with most of these.
    ASSERT_GE(least.static_bytes, kept) << what;
    if (config.parallelism.pipeline == 1) {
      ASSERT_EQ(least.static_bytes, kept) << what;
    }
  }
  const CandidateEvaluator evaluator(space_);
  for (const auto& [place, seconds] : fastest) {
    const CandidateEvaluation weighed =
        evaluator.weigh({.known = Known::pieces, .choice = {place.first, place.second}, .choices = 1});
    for (const SearchNode& node : weighed.nodes) EXPECT_LE(node.seconds, seconds) << place.first;
  }
}

}  // namespace weft
