// Durations of actions if lanes share the adapters of a node. The walk of a simulation (simulate.cpp) finds the waits
// of each action. Here time passes, so that transfers that leave a node at the same time slow each other down.
//
// An action first does its work without adapters, then its work with them. Concurrent transfers of one node have equal
// shares of its adapters: each of n proceeds at one n-th of the rate. A node's adapters are thus never used beyond
// their full rate. No step is shorter than the time of all transfers that leave one of its nodes, at full rate. A part of
// a computation that needs rows begins as much ahead of their arrival as it computes without them.
#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "parallel/pipeline/simulation/simulate_state.h"
#include "parallel/runtime/error.h"

namespace weft::walking {
namespace {

// Transfers in flight, each at an equal share of the rate. Progress is the seconds at full rate that each of them has
// had so far. The order of their ends thus does not change when others come or go.
class Adapters {
 public:
  void join(double time, std::size_t action, double seconds) {
    advance(time);
    under_way_.emplace(progress_ + seconds, action);
    ++change_;
  }
  // Removes and returns the transfer that ends next.
  std::size_t leave(double time) {
    time_ = time;
    progress_ = under_way_.top().first;
    const std::size_t action = under_way_.top().second;
    under_way_.pop();
    ++change_;
    return action;
  }
  bool idle() const { return under_way_.empty(); }
  double next_end() const {
    return time_ + std::max(under_way_.top().first - progress_, 0.0) * static_cast<double>(under_way_.size());
  }
  // Number of changes; an end that was predicted before the last change is void.
  unsigned change() const { return change_; }

 private:
  void advance(double time) {
    if (!idle()) progress_ += (time - time_) / static_cast<double>(under_way_.size());
    time_ = time;
  }

  using Transfer = std::pair<double, std::size_t>;  // progress at its end, and its action
  std::priority_queue<Transfer, std::vector<Transfer>, std::greater<>> under_way_;
  double progress_ = 0.0, time_ = 0.0;
  unsigned change_ = 0;
};

class Clock {
 public:
  explicit Clock(const std::vector<ToldAction>& actions) : actions_(actions), states_(actions.size()) {
    std::size_t meetings = 0, adapters = 0;
    for (const ToldAction& action : actions) {
      if (action.meeting) meetings = std::max(meetings, *action.meeting + 1);
      if (action.adapter_seconds > 0.0) adapters = std::max(adapters, static_cast<std::size_t>(action.adapters) + 1);
    }
    meetings_.resize(meetings);
    adapters_.resize(adapters);
    list_followers();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      State& state = states_[i];
      state.to_start = actions[i].after.size();
      if (actions[i].send) {
        ++state.to_start;
        ++state.to_end;
        states_[*actions[i].send].receive = i;
      }
      if (actions[i].rows) states_[*actions[i].rows].part = i;
      if (actions[i].meeting) {
        ++state.to_start;
        state.meets = true;
        meetings_[*actions[i].meeting].push_back(i);
      }
    }
  }

  std::vector<double> run() {
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (actions_[i].after.empty() && !actions_[i].send) come(i, 0, 0.0);
    }
    while (!events_.empty()) {
      const auto [time, at, of_adapters, change] = events_.top();
      events_.pop();
      if (!of_adapters) {
        own_part_ended(at, time);
      } else if (change == adapters_[at].change()) {
        const std::size_t action = adapters_[at].leave(time);
        foresee(at);
        part_ended(action, time);
      }
    }
    std::vector<double> seconds;
    for (const State& state : states_) {
      require(state.to_end == 0, "every action of a simulated step ends");
      seconds.push_back(state.end - state.start);
    }
    return seconds;
  }

 private:
  struct State {
    std::size_t to_start = 0, to_end = 1;  // number of missing conditions
    double start = 0.0, end = 0.0;
    std::optional<std::size_t> receive = {};
    std::size_t followers = 0;  // end of its actions in `followers_`, which begin at that of the action before
    bool meets = false;
    std::optional<std::size_t> part = {};  // that needs its rows
    bool held = false;                     // started, and its rows have not arrived
  };
  // The end of an action's own part, or of a transfer on adapters: time, action or adapters, whether adapters, change.
  using Event = std::tuple<double, std::size_t, bool, unsigned>;

  // The actions that wait for each action, in one array: a list for each would take longer to allocate than to use.
  void list_followers() {
    for (const ToldAction& action : actions_) {
      for (const std::size_t before : action.after) ++states_[before].followers;
    }
    std::size_t end = 0;
    for (State& state : states_) end += std::exchange(state.followers, end);
    followers_.resize(end);
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      for (const std::size_t before : actions_[i].after) followers_[states_[before].followers++] = i;
    }
  }

  // `things` more of the conditions for the action's start are met.
  void come(std::size_t action, std::size_t things, double time) {
    State& state = states_[action];
    state.to_start -= things;
    if (!state.meets) {
      if (state.to_start == 0) start(action, time);
      return;
    }
    if (state.to_start != 1) return;
    const std::vector<std::size_t>& all = meetings_[*actions_[action].meeting];
    if (!std::ranges::all_of(all, [&](std::size_t each) { return states_[each].to_start == 1; })) return;
    for (const std::size_t each : all) states_[each].to_start = 0;
    for (const std::size_t each : all) start(each, time);
  }

  void start(std::size_t action, double time) {
    states_[action].start = time;
    const auto rows = actions_[action].rows;
    states_[action].held = rows && states_[*rows].to_end > 0;
    if (states_[action].held) return;
    const double own = std::max(actions_[action].seconds - actions_[action].adapter_seconds, 0.0);
    events_.emplace(time + own, action, false, 0);
    if (const auto receive = states_[action].receive) come(*receive, 1, time);
  }

  void own_part_ended(std::size_t action, double time) {
    if (actions_[action].adapter_seconds == 0.0) return part_ended(action, time);
    const auto adapters = static_cast<std::size_t>(actions_[action].adapters);
    adapters_[adapters].join(time, action, actions_[action].adapter_seconds);
    foresee(adapters);
  }

  void part_ended(std::size_t action, double time) {
    State& state = states_[action];
    if (--state.to_end > 0) return;
    state.end = time;
    if (state.receive) part_ended(*state.receive, time);
    if (state.part && states_[*state.part].held) {
      start(*state.part, std::max(states_[*state.part].start, time - actions_[*state.part].before_rows));
    }
    for (std::size_t i = action == 0 ? 0 : states_[action - 1].followers; i < state.followers; ++i) {
      come(followers_[i], 1, time);
    }
  }

  void foresee(std::size_t adapters) {
    const Adapters& each = adapters_[adapters];
    if (!each.idle()) events_.emplace(each.next_end(), adapters, true, each.change());
  }

  const std::vector<ToldAction>& actions_;
  std::vector<State> states_;
  std::vector<std::size_t> followers_;  // by action
  std::vector<std::vector<std::size_t>> meetings_;
  std::vector<Adapters> adapters_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

std::vector<double> shared_seconds(const std::vector<ToldAction>& actions) {
  return Clock(actions).run();
}

}  // namespace weft::walking
