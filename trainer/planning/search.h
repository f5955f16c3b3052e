// Searches the fastest ways to run a model on a number of ranks of given hardware, among those that fit into memory.
// The search is best-first over a space (search_space.h) with bounds (search_bounds.h). Its result equals that of
// planning every choice. A choice is skipped only if a bound shows that it does not fit, or that enough fitting choices
// are faster.
//
// The choice with the least bound is looked at next. First its bound is tightened, then its step is simulated, then a
// dry run counts its memory. It ends when the choice is first in the queue and fully known. Several threads look at
// choices, always in groups of one fixed size, so results and counts do not depend on the number of threads. Those of a
// search with a limit of time depend on the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/planning/run_plan.h"
#include "trainer/planning/search_space.h"

namespace weft {

// One choice with the figures of plan_run().
struct SearchedPlan {
  SearchChoice choice;
  std::string layout = {};  // as text
  StepTime time = {};
  BucketBytes peak = {};  // of the fullest rank
  Verdict verdict = {};
  bool front = false;  // no other plan that fits is as fast with less memory, or faster with as much

  bool operator==(const SearchedPlan&) const = default;
};

struct Refusals {
  std::size_t choices = 0;
  std::string example;  // the message of the first of them
  bool operator==(const Refusals&) const = default;
};

// What becomes of a choice that no rule refuses or leaves out.
enum class ChoiceOutcome : std::uint8_t {
  same,          // compiles to the program of another choice
  static_bytes,  // parameters, gradients and optimizer state alone do not fit
  held_bytes,    // these and bytes kept for microbatches do not fit
  slower,        // by a bound, slower than all shown plans
  simulated,     // simulated, slower than all shown plans
  unfit,         // simulated and dry-run, does not fit
  planned,       // simulated and dry-run, fits
  open,          // left when the search was stopped, by a bound perhaps to be shown
};
constexpr auto enum_names(ChoiceOutcome) {
  return name_list("same", "static_bytes", "held_bytes", "slower", "simulated", "unfit", "planned", "open");
}

// The counts of refused choices, of those left out and of all outcomes add up to `choices`.
struct SearchCounts {
  std::size_t choices = 0;
  std::map<std::string, Refusals> refused;      // by message without its numbers
  std::map<std::string, std::size_t> left_out;  // by the text of the rule
  std::array<std::size_t, names_of_all<ChoiceOutcome>.size()> outcomes = {};

  std::size_t& operator[](ChoiceOutcome outcome) { return outcomes[static_cast<std::size_t>(outcome)]; }
  std::size_t operator[](ChoiceOutcome outcome) const { return outcomes[static_cast<std::size_t>(outcome)]; }
  bool operator==(const SearchCounts&) const = default;
};

struct SearchOptions {
  std::size_t top = 10;  // how many to find
  // Also finds every plan on the front of time against memory within this multiple of the fastest step. 0: no front.
  double front_within = 0.0;
  std::size_t threads = 1;
  // Stops the search after about as many seconds; it then first looks for one plan in each mesh. Absent: never.
  std::optional<double> seconds = {};
};

struct SearchProgress {
  SearchCounts counts;      // so far; without choices not looked at yet
  std::size_t waiting = 0;  // in the queue
  std::optional<double> best_seconds = {};
};

struct SearchResult {
  std::vector<SearchedPlan> plans;  // fastest first; equally fast plans in the order of choices
  SearchCounts counts;
  std::optional<SearchedPlan> least = {};  // if nothing fits: the plan that needs least memory
  // If the search was stopped: the least bound of the choices left, 0 if some have none. A faster plan is the fastest.
  std::optional<double> not_below = {};
};

SearchResult search_plans(const SearchSpace& space, const SearchOptions& options,
                          const std::function<void(const SearchProgress&)>& progress = {});

// Data sharding alone beside the hybrids of a search. It is FSDP over all ranks, without pipeline, tensor, context or
// expert ranks or replicas; hybrids are meshes with such ranks. The term of the step or of the memory that decides
// between them is given, too.
enum class LayoutKind : std::uint8_t { data_sharding, hybrid, neither };
constexpr auto enum_names(LayoutKind) {
  return name_list("data sharding alone", "hybrid", "neither");
}
LayoutKind kind_of(const Degrees& mesh);

struct BestOfKind {
  bool searched = false;  // whether the space has such meshes
  bool stopped = false;   // whether time was up before a plan was found
  std::optional<Config> config = {};
  // The fastest that fits, or else the one that needs least memory. Absent if rules refuse all, or if stopped.
  std::optional<RunPlan> plan = {};
  bool fits() const { return plan && plan->verdict.fits(); }
};

// A term of the mean rank's step (StepPart), in seconds.
struct TermOfKinds {
  std::string what;
  double data_sharding = 0.0, hybrid = 0.0;
  double difference() const { return hybrid - data_sharding; }
};

struct KindsOfLayout {
  BestOfKind data_sharding, hybrid;
  // Of both plans; the largest difference first. Each plan's add up to its step.
  std::vector<TermOfKinds> terms = {};

  // One sentence: the term that decides, or the memory where only one fits.
  std::string decision() const;
};

// `found`: the search of the whole space. Its fastest plan is the best of its kind. The others are searched for, with
// threads and seconds as `options` say.
KindsOfLayout compare_kinds(const SearchSpace& space, const SearchResult& found, const SearchOptions& options);

}  // namespace weft
