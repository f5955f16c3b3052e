#include "trainer/layout/schedule_residents.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trainer/plan/configured_schedule.h"

namespace weft {
namespace {

// Whether b keeps at least as many microbatches as a on every stage.
bool covers(const std::vector<int>& b, const std::vector<int>& a) {
  return std::ranges::equal(a, b, std::ranges::less_equal());
}

}  // namespace

std::vector<std::vector<int>> kept_microbatches(const std::vector<Action>& actions, const std::vector<int>& stages) {
  std::vector<int> kept(stages.size(), 0);
  std::set<std::vector<int>> instants;  // each before a microbatch is released
  bool grew = false;
  const auto note = [&] {
    if (std::exchange(grew, false)) instants.insert(kept);
  };
  for (const Action& action : actions) {
    const auto chunk = std::ranges::find(stages, *action.stage) - stages.begin();
    int& own = kept[static_cast<std::size_t>(chunk)];
    if (action.op == Op::forward) {
      ++own;
      grew = true;
    } else if (makes_weight_gradient(action.op)) {
      note();
      --own;
    }
  }
  note();
  std::vector<std::vector<int>> fullest;
  for (const std::vector<int>& instant : instants) {
    const bool covered = std::ranges::any_of(
        instants, [&](const std::vector<int>& other) { return other != instant && covers(other, instant); });
    if (!covered) fullest.push_back(instant);
  }
  return fullest;
}

ScheduleResidents schedule_residents(const Config& config) {
  ScheduleResidents ranks;
  ranks.rank_of_stage = stage_ranks(config);
  if (config.stages() == config.parallelism.pipeline && !config.memory_budget) {
    ranks.kept.resize(ranks.rank_of_stage.size());
    const ScheduleResidents usual = one_stage_each(config.stages(), static_cast<int>(config.microbatches()));
    for (std::size_t stage = 0; stage < usual.kept.size(); ++stage)
      ranks.kept[static_cast<std::size_t>(ranks.rank_of_stage[stage])] = usual.kept[stage];
    return ranks;
  }
  const std::vector<std::vector<Action>> order = compute_order(config);
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    ranks.kept.push_back(kept_microbatches(order[rank], stages_of_rank(config, static_cast<int>(rank))));
  return ranks;
}

}  // namespace weft
