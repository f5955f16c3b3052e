// Simulates combinations of a pipeline's settings, for `weft layout sweep`; declarations are in the order of use. An
// axis is a list of values of one key. An axis without values leaves the key unchanged.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/report/given_costs.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

// From the outermost loop to the innermost.
enum class SweepAxis : std::uint8_t { schedule, chunks, layout, residency, budget, microbatches };
struct SweepAxisTraits {
  const char *option, *help;
  const char* key;  // that takes the values; null for microbatches, which are a size of them
};
inline constexpr std::array sweep_axes = {
    SweepAxisTraits{"--schedules", "values of pipeline.schedule, separated by commas", "pipeline.schedule"},
    SweepAxisTraits{"--chunks", "of pipeline.chunks", "pipeline.chunks"},
    SweepAxisTraits{"--layouts",
                    "of pipeline.layout: auto,\"Ed|e*3L\",[1, 3]; a layout that holds commas itself in quotes",
                    "pipeline.layout"},
    SweepAxisTraits{"--residencies", "of shard.residency: reshard_after_use,while_on_stage,window 2,step,auto",
                    "shard.residency"},
    SweepAxisTraits{"--budgets", "of shard.memory_budget, for residency auto", "shard.memory_budget"},
    SweepAxisTraits{"--microbatches", "microbatches a step, of one batch: more of them are smaller ones", nullptr},
};

// Something for each axis.
template <typename Value>
struct ByAxis : std::array<Value, sweep_axes.size()> {
  using std::array<Value, sweep_axes.size()>::operator[];
  Value& operator[](SweepAxis axis) { return (*this)[static_cast<std::size_t>(axis)]; }
  const Value& operator[](SweepAxis axis) const { return (*this)[static_cast<std::size_t>(axis)]; }
};
// Lists as typed, with entries separated by commas. Commas inside brackets or quotes do not separate.
using SweepLists = ByAxis<std::vector<std::string>>;
// One value for each axis that has values; the other axes are absent.
using SweepChoice = ByAxis<std::optional<std::string>>;

struct SweepPoint {
  Overrides words;  // with the common words, the overrides that make `weft train` run this
  // Values of the resulting run, including values that the configuration leaves open.
  std::string schedule, residency, budget;
  int chunks = 1;
  std::int64_t microbatches = 0;
  StepForecast forecast;
  int rank = 0;        // 1: the fastest; ties go to less memory, then to the earlier choice
  bool front = false;  // no other point is as fast with less memory, or faster with as much
};

struct Sweep {
  std::vector<SweepPoint> points;          // valid points, in the order of choices
  std::map<std::string, int> refused;      // number of choices by reason
  std::size_t choices = 0, simulated = 0;  // simulated: number of different programs
};

// Throws Error (request) with all faults of the lists: entries that the key does not take, repeated or empty entries.
std::vector<SweepChoice> sweep_choices(const SweepLists& lists);

// `common`: words for all choices. `progress` receives the number of finished choices.
Sweep run_sweep(const std::string& file, const Overrides& common, const std::vector<SweepChoice>& choices,
                const CostSource& costs, const std::function<void(std::size_t)>& progress);

}  // namespace weft
