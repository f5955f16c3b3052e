// Combinations of what can be chosen about a pipeline, each simulated: what `weft layout sweep` does, in the order in
// which it does it. An axis is a list of values of one key; an axis without values leaves the key as it is.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/report/given_costs.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

// Lists as typed, entries separated by commas; brackets and quotes keep what stands between them together.
struct SweepLists {
  std::vector<std::string> schedules, chunks, layouts, residencies, budgets, microbatches;
};

// One value of each axis that has values, nothing of the others.
struct SweepChoice {
  std::optional<std::string> schedule, chunks, layout, residency, budget, microbatches;
};

struct SweepPoint {
  Overrides words;  // with those common to all, what makes `weft train` run this
  // What it comes to, and what was chosen where the configuration alone does not say.
  std::string schedule, residency, budget;
  int chunks = 1;
  std::int64_t microbatches = 0;
  StepForecast forecast;
  int rank = 0;        // 1 is the fastest; of equally fast ones that of less memory, then that of the earlier choice
  bool front = false;  // no other is as fast with less memory, or faster with as much
};

struct Sweep {
  std::vector<SweepPoint> points;          // the valid ones, in the order of choices
  std::map<std::string, int> refused;      // how many, by reason
  std::size_t choices = 0, simulated = 0;  // simulated: what came to different programs
};

// Throws Error (request) with everything wrong with the lists: entries that the key does not take, repeated or empty
// ones.
std::vector<SweepChoice> sweep_choices(const SweepLists& lists);

// `common` are words for all. `progress` is told how many choices are done.
Sweep run_sweep(const std::string& file, const Overrides& common, const std::vector<SweepChoice>& choices,
                const CostSource& costs, const std::function<void(std::size_t)>& progress);

// Quoted where a shell needs it.
std::string shell_text(const Overrides& words);

}  // namespace weft
