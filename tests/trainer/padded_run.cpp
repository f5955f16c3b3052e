#include "tests/trainer/padded_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>

#include "parallel/runtime/error.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/run_steps.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// Links between ranks, one per pair and lane of each pipeline. Messages on a link pass one after another.
class DelayingLinks {
 public:
  using Link = std::tuple<int, int, int, Lane>;  // pipeline, from, to, the lane that sends

  void post(const Link& link, Clock::time_point at, Clock::duration seconds) {
    const std::lock_guard lock(mutex_);
    State& state = links_[link];
    state.free = std::max(state.free, at) + seconds;
    state.arrivals.push_back(state.free);
    posted_.notify_all();
  }
  // The arrival time of the oldest message not taken yet. Waits up to 10 s for its sender to post it.
  Clock::time_point take(const Link& link) {
    std::unique_lock lock(mutex_);
    State& state = links_[link];
    const bool posted = posted_.wait_for(lock, std::chrono::seconds(10), [&] { return !state.arrivals.empty(); });
    require(posted, "what has been received has been sent");
    const Clock::time_point arrival = state.arrivals.front();
    state.arrivals.pop_front();
    return arrival;
  }

 private:
  struct State {
    Clock::time_point free = {};
    std::deque<Clock::time_point> arrivals = {};
  };
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<Link, State> links_;
};

class PaddedActions final : public ActionObserver {
 public:
  struct Times {
    Clock::time_point begin, end;
  };

  // `rank` is the pipeline rank in one of the pipelines.
  PaddedActions(const Program& program, int pipeline, int rank, const ProgramCosts& costs, DelayingLinks& links)
      : program_(program),
        pipeline_(pipeline),
        rank_(rank),
        links_(links),
        actions_(program.ranks[static_cast<std::size_t>(rank)]),
        times_(actions_.size()) {
    for (const Action& action : actions_) {
      const bool lasts =
          is_compute(action.op) || is_send(action.op) || is_row_exchange(action.op) || is_host_copy(action.op);
      padding_.push_back(duration_of(lasts ? cost_of(program, costs, action) : 0.0));
      before_rows_.push_back(duration_of(is_compute(action.op) ? seconds_before_rows(costs, action) : 0.0));
    }
  }

  void begin(std::size_t index) override {
    const Action& action = actions_[index];
    if (is_compute(action.op) && !action.part.first()) {
      std::this_thread::sleep_until(rows_there_.at({*action.segment, *action.microbatch}) - before_rows_[index]);
    }
    times_[index].begin = Clock::now();
  }
  void end(std::size_t index) override {
    const Action& action = actions_[index];
    // Sleeps to the end instead of spinning, because a loaded machine schedules a thread at once after a sleep.
    if (is_compute(action.op) || is_host_copy(action.op)) {
      std::this_thread::sleep_until(times_[index].begin + padding_[index]);
    }
    if (is_send(action.op) || is_receive(action.op)) {
      const Lane lane = message_lanes_of(program_, action).send;
      if (is_send(action.op)) links_.post({pipeline_, rank_, *action.peer, lane}, Clock::now(), padding_[index]);
      if (is_receive(action.op)) std::this_thread::sleep_until(links_.take({pipeline_, *action.peer, rank_, lane}));
    }
    if (is_row_exchange(action.op)) {
      exchange_free_ = std::max(exchange_free_, Clock::now()) + padding_[index];
      rows_there_[{*action.segment, *action.microbatch}] = exchange_free_;
    }
    times_[index].end = Clock::now();
  }

  const std::vector<Times>& times() const { return times_; }  // of the last step

 private:
  static Clock::duration duration_of(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  const Program& program_;
  const int pipeline_, rank_;
  DelayingLinks& links_;
  std::span<const Action> actions_;
  std::vector<Clock::duration> padding_, before_rows_;
  std::vector<Times> times_;
  Clock::time_point exchange_free_ = {};                              // the link between experts
  std::map<std::pair<int, int>, Clock::time_point> rows_there_ = {};  // by segment and microbatch
};

Simulation step_of(const std::vector<std::vector<PaddedActions::Times>>& ranks) {
  Clock::time_point first = ranks.front().front().begin;
  for (const auto& times : ranks) first = std::min(first, times.front().begin);
  const auto since = [&](Clock::time_point time) { return std::chrono::duration<double>(time - first).count(); };
  Simulation step;
  for (const auto& times : ranks) {
    auto& actions = step.ranks.emplace_back();
    for (const auto& [begin, end] : times) actions.push_back({.start = since(begin), .end = since(end)});
    step.seconds = std::max(step.seconds, actions.back().end);
  }
  return step;
}

}  // namespace

PaddedRun run_padded(const Config& config, const CostTable& padding) {
  const Mesh mesh(config.parallelism);
  if (config.run.launch == LaunchKind::processes || config.run.device != DeviceKind::cpu) {
    fail_request("computation is padded where the ranks are threads on the CPU");
  }
  PaddedRun result;
  result.program = step_program(ResolvedRun(config), {});
  result.costs = table_costs(padding, result.program, group_sizes(mesh));
  const auto ranks = static_cast<std::size_t>(mesh.world());
  DelayingLinks links;
  std::vector<std::unique_ptr<PaddedActions>> watched(ranks);
  std::vector<std::vector<std::vector<PaddedActions::Times>>> times(static_cast<std::size_t>(config.run.steps));
  for (auto& step : times) step.resize(static_cast<std::size_t>(config.parallelism.pipeline));
  result.traces.resize(ranks);
  RunObserver observer;  // each rank writes to its own places
  observer.before_first_step = [&](RankRun& run) {
    const auto rank = static_cast<std::size_t>(run.rank());
    const int pipeline_rank = mesh.coordinates(run.rank()).pp;
    watched[rank] = std::make_unique<PaddedActions>(result.program, mesh.group_of(Group::pp, run.rank()).front(),
                                                    pipeline_rank, result.costs, links);
    run.observe(*watched[rank]);
  };
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const auto rank = static_cast<std::size_t>(run.rank());
    const auto pipeline_rank = static_cast<std::size_t>(mesh.coordinates(run.rank()).pp);
    if (mesh.group_of(Group::pp, run.rank()).front() == 0) {
      times[static_cast<std::size_t>(metrics.step - 1)][pipeline_rank] = watched[rank]->times();
    }
    if (metrics.step < config.run.steps) return;
    result.traces[rank].rank = run.rank();
    if (const StepTrace* trace = run.profiler().trace()) result.traces[rank].spans = trace->spans();
  };
  run_steps(config, observer);
  for (const auto& step : times) result.steps.push_back(step_of(step));
  return result;
}

double bubble_of(const Program& program, const Simulation& step, int rank) {
  const auto& actions = program.ranks.at(static_cast<std::size_t>(rank));
  double bubble = step.seconds;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const SimulatedAction& times = step.ranks.at(static_cast<std::size_t>(rank))[i];
    if (is_compute(actions[i].op)) bubble -= times.end - times.start;
  }
  return bubble;
}

double SimulationError::most() const {
  return std::max({step, bubble, start});
}

SimulationError simulation_error(const Program& program, const Simulation& simulation, const Simulation& step) {
  const auto apart = [&](double one, double other) { return std::abs(one - other) / simulation.seconds; };
  SimulationError error{.step = apart(step.seconds, simulation.seconds)};
  for (int rank = 0; rank < std::ssize(program.ranks); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      if (!is_compute(program.ranks[r][i].op)) continue;
      error.start = std::max(error.start, apart(step.ranks[r][i].start, simulation.ranks[r][i].start));
    }
    const double measured = bubble_of(program, step, rank), simulated = bubble_of(program, simulation, rank);
    error.bubble = std::max(error.bubble, apart(measured, simulated));
  }
  return error;
}

const Simulation& least_disturbed(const PaddedRun& run) {
  return *std::ranges::min_element(run.steps, {}, &Simulation::seconds);
}

}  // namespace weft
