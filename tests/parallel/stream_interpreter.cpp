#include "tests/parallel/stream_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace weft {
namespace {

using MeetingKey = std::tuple<int, int, int, int, int>;  // kind, who, with whom, replica, turn
struct Meeting {
  int expected = 0;
  std::vector<std::size_t> came;  // tasks
};

struct Task {
  std::size_t action = 0;
  std::vector<std::size_t> after = {};  // tasks of the same worker
  bool meets = false, came = false, over = false;
  MeetingKey meeting = {};
};

// One rank of one replica: the host's place in the list and the streams with what is queued on them.
struct Worker {
  int rank = 0, replica = 0;
  std::size_t host = 0;
  std::map<int, std::deque<std::size_t>> streams = {};
  std::vector<std::size_t> host_after = {};  // tasks that the host waits for

  std::optional<std::size_t> last_compute = {}, before_reshard = {};
  std::map<int, std::size_t> gathers = {}, reductions_by_unit = {};
  std::map<std::pair<int, int>, std::size_t> copies = {};  // of kept bytes, by segment and microbatch
  std::vector<std::size_t> reductions = {};
  std::map<std::tuple<bool, int, int>, std::size_t> arrivals = {};
  std::map<MeetingKey, int> turns = {};
};

constexpr int compute_stream = 0, gather_stream = 1, reduce_stream = 2, first_message_stream = 3, to_host_stream = 11,
              from_host_stream = 12, streams = 13;

class Streams {
 public:
  Streams(const Program& program, std::uint32_t seed, const StreamOptions& options)
      : program_(program), options_(options), random_(seed) {
    for (int replica = 0; replica < options.replicas; ++replica) {
      for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
        workers_.push_back({.rank = rank, .replica = replica});
        for (int stream = 0; stream < streams; ++stream) actors_.emplace_back(workers_.size() - 1, stream);
        actors_.emplace_back(workers_.size() - 1, host_actor);
      }
    }
  }

  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(actors_.begin(), actors_.end(), random_);
      for (const auto& [worker, stream] : actors_) {
        // Now and then one gets far ahead of the others.
        for (unsigned times = 1 + random_() % 4; times > 0; --times) {
          if (!(stream == host_actor ? queue_next(workers_[worker]) : work_off(workers_[worker], stream))) break;
          moved = true;
        }
      }
    }
    for (Worker& worker : workers_) {
      if (worker.host < list(worker).size()) return place(worker, "host", worker.host);
      for (const auto& [stream, tasks] : worker.streams) {
        if (!tasks.empty()) return place(worker, fmt::format("stream {}", stream), tasks_[tasks.front()].action);
      }
    }
    return "";
  }

 private:
  static constexpr int host_actor = -1;

  const std::vector<Action>& list(const Worker& worker) const {
    return program_.ranks[static_cast<std::size_t>(worker.rank)];
  }
  static std::string place(const Worker& worker, const std::string& who, std::size_t action) {
    return fmt::format("rank {} of replica {}: {} stands still at action {}", worker.rank, worker.replica, who, action);
  }

  std::size_t add(Worker& worker, int stream, std::vector<std::size_t> after) {
    tasks_.push_back({.action = worker.host, .after = std::move(after)});
    worker.streams[stream].push_back(tasks_.size() - 1);
    return tasks_.size() - 1;
  }
  void meet(Worker& worker, std::size_t task, MeetingKey key, int expected) {
    std::get<4>(key) = worker.turns[key]++;
    tasks_[task].meets = true;
    tasks_[task].meeting = key;
    meetings_[key].expected = expected;
  }

  // Whether the host got on.
  bool queue_next(Worker& worker) {
    if (worker.host == list(worker).size()) return false;
    for (std::size_t task : worker.host_after) {
      if (!tasks_[task].over) return false;
    }
    worker.host_after.clear();
    const Action& action = list(worker)[worker.host];
    if (is_compute(action.op)) {
      compute(worker, action);
    } else if (is_send(action.op) || is_receive(action.op)) {
      message(worker, action);
    } else if (is_gather(action.op)) {
      std::vector<std::size_t> after;
      if (worker.before_reshard) after.push_back(*worker.before_reshard);
      const std::size_t task = add(worker, gather_stream, after);
      meet(worker, task, {1, worker.rank, 0, 0, 0}, options_.replicas);
      worker.gathers[action.unit.value_or(-1)] = task;
    } else if (is_reshard(action.op)) {
      worker.before_reshard = worker.last_compute;
    } else if (is_reduction(action.op)) {
      const std::size_t task = add(worker, reduce_stream, all_compute(worker));
      meet(worker, task, {2, worker.rank, 0, 0, 0}, options_.replicas);
      worker.reductions.push_back(task);
      worker.reductions_by_unit[action.unit.value_or(-1)] = task;
    } else if (action.op == Op::wait_reduction) {
      worker.last_compute = add(worker, compute_stream, {worker.reductions_by_unit[action.unit.value_or(-1)]});
    } else if (is_host_copy(action.op)) {
      const bool leaves = action.op == Op::offload;
      worker.copies[{*action.segment, *action.microbatch}] =
          add(worker, leaves ? to_host_stream : from_host_stream, all_compute(worker));
    } else if (action.op == Op::wait_offload) {
      worker.last_compute = add(worker, compute_stream, {worker.copies.at({*action.segment, *action.microbatch})});
    } else if (action.op == Op::gradient_norm) {
      const std::size_t task = add(worker, compute_stream, worker.reductions);
      meet(worker, task, {3, 0, 0, 0, 0}, static_cast<int>(workers_.size()));
      worker.host_after = {task};
    }
    ++worker.host;
    return true;
  }

  static std::vector<std::size_t> all_compute(const Worker& worker) {
    // A stream works in order: behind the last one, all are over.
    return worker.last_compute ? std::vector<std::size_t>{*worker.last_compute} : std::vector<std::size_t>{};
  }

  void compute(Worker& worker, const Action& action) {
    std::vector<std::size_t> after;
    if (action.op != Op::backward_weight && action.op != Op::recompute) {
      const auto arrived = worker.arrivals.find({action.op == Op::forward, *action.stage, *action.microbatch});
      if (arrived != worker.arrivals.end()) after.push_back(arrived->second);
    }
    if (action.segment) {
      const auto copy = worker.copies.find({*action.segment, *action.microbatch});
      if (copy != worker.copies.end()) after.push_back(copy->second);
      for (int unit : program_.segments[static_cast<std::size_t>(*action.segment)].units) {
        const auto gather = worker.gathers.find(unit);
        if (gather != worker.gathers.end()) after.push_back(gather->second);
      }
    }
    // The accumulator that it fills was the input of a reduction.
    const std::size_t in_flight = static_cast<std::size_t>(program_.reduce_inputs) + 1;
    if (makes_weight_gradient(action.op) && worker.reductions.size() >= in_flight) {
      after.push_back(worker.reductions[worker.reductions.size() - in_flight]);
    }
    worker.last_compute = add(worker, compute_stream, after);
    if (options_.hosts_wait) worker.host_after = {*worker.last_compute};
  }

  void message(Worker& worker, const Action& action) {
    const bool sends = is_send(action.op);
    const bool forward = action.op == Op::send_forward || action.op == Op::receive_forward;
    const int source = sends ? worker.rank : *action.peer, target = sends ? *action.peer : worker.rank;
    const bool apart = !options_.merged_lanes;
    const int kind = (forward ? 0 : 2) + (apart && source > target ? 1 : 0);
    const int stream = first_message_stream + 2 * kind + (apart && sends ? 1 : 0);
    const std::size_t task = add(worker, stream, sends ? all_compute(worker) : std::vector<std::size_t>{});
    const MeetingKey key{10 + kind, source, target, worker.replica, 0};
    meet(worker, task, key, 2);
    if (!sends) worker.arrivals[{forward, *action.stage, *action.microbatch}] = task;
  }

  // Whether the stream did something.
  bool work_off(Worker& worker, int stream) {
    auto& tasks = worker.streams[stream];
    if (!tasks.empty() && tasks_[tasks.front()].over) {
      tasks.pop_front();
      return true;
    }
    if (tasks.empty() || tasks_[tasks.front()].came) return false;
    Task& task = tasks_[tasks.front()];
    for (std::size_t before : task.after) {
      if (!tasks_[before].over) return false;
    }
    task.came = true;
    if (!task.meets) {
      task.over = true;
      return true;
    }
    Meeting& meeting = meetings_[task.meeting];
    meeting.came.push_back(tasks.front());
    if (static_cast<int>(meeting.came.size()) == meeting.expected) {
      for (std::size_t other : meeting.came) tasks_[other].over = true;
    }
    return true;
  }

  const Program& program_;
  const StreamOptions options_;
  std::mt19937 random_;
  std::vector<Worker> workers_;
  std::vector<std::pair<std::size_t, int>> actors_;  // worker, stream
  std::deque<Task> tasks_;
  std::map<MeetingKey, Meeting> meetings_;
};

}  // namespace

std::string standstill_on_streams(const Program& program, std::uint32_t seed, const StreamOptions& options) {
  return Streams(program, seed, options).run();
}

}  // namespace weft
