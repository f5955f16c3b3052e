// The fastest ways to run a model on a number of ranks of given hardware, of those whose memory fits: a best-first
// search over a space (search_space.h) with bounds (search_bounds.h). What is found is what planning every choice would
// find: a choice is passed over only when a bound shows that it does not fit or is slower than enough that do.
//
// The choice with the least bound is looked at next: its bound is made tighter, then its step is simulated, then its
// memory is counted by a dry run, until it stands first with nothing left to find out. Choices are looked at by several
// threads, always so many at once, so that what is found and counted does not depend on the number of threads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/planning/run_plan.h"
#include "trainer/planning/search_space.h"

namespace weft {

// One choice, planned: what plan_run() says of it.
struct SearchedPlan {
  SearchChoice choice;
  std::string layout = {};  // as text
  StepTime time = {};
  BucketBytes peak = {};  // of the fullest rank
  Verdict verdict = {};
  bool front = false;  // no other that fits is as fast with less memory, or faster with as much

  bool operator==(const SearchedPlan&) const = default;
};

struct Refusals {
  std::size_t choices = 0;
  std::string example;  // the message of the first of them
  bool operator==(const Refusals&) const = default;
};

// All choices, by what became of them; together they are `choices`.
struct SearchCounts {
  std::size_t choices = 0;
  std::map<std::string, Refusals> refused;      // by message, numbers aside
  std::map<std::string, std::size_t> left_out;  // by the rule in words
  std::size_t same = 0;                         // come to the program of another
  std::size_t static_bytes = 0;                 // parameters, gradients and optimizer state alone do not fit
  std::size_t held_bytes = 0;                   // with what microbatches keep they do not
  std::size_t slower = 0;                       // by a bound, than all that is shown
  std::size_t simulated = 0;                    // and slower than all that is shown
  std::size_t unfit = 0;                        // simulated, walked through, and do not fit
  std::size_t planned = 0;                      // the same, and fit

  bool operator==(const SearchCounts&) const = default;
};

struct SearchOptions {
  std::size_t top = 10;  // how many to find
  // Also every plan of the front of time against memory, up to so many times the fastest step. 0: not.
  double front_within = 0.0;
  std::size_t threads = 1;
};

struct SearchProgress {
  SearchCounts counts;      // so far; of those not looked at yet nothing
  std::size_t waiting = 0;  // in the queue
  std::optional<double> best_seconds = {};
};

struct SearchResult {
  std::vector<SearchedPlan> plans;  // fastest first; of equally fast ones the earlier choice
  SearchCounts counts;
  std::optional<SearchedPlan> least = {};  // where nothing fits, what comes nearest to it
};

SearchResult search_plans(const SearchSpace& space, const SearchOptions& options,
                          const std::function<void(const SearchProgress&)>& progress = {});

// One choice alone, without bounds: the plan, or why a rule refuses it.
struct JudgedChoice {
  std::optional<SearchedPlan> plan;
  std::string refused;
};
JudgedChoice judge_choice(const SearchSpace& space, const SearchChoice& choice);
// All of the space, in its order.
std::vector<SearchChoice> all_choices(const SearchSpace& space);

// Sets `front` among plans that are sorted by time.
void mark_front(std::vector<SearchedPlan>& plans);

}  // namespace weft
