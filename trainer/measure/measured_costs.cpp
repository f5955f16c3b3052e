#include "trainer/measure/measured_costs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/medians.h"
#include "parallel/runtime/quantities.h"
#include "trainer/config/config_sources.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// Seconds of all samples by key.
template <typename Key>
using KeyedSeconds = std::map<Key, std::vector<double>>;

void require_rank(const Mesh& mesh, const RankTrace& trace) {
  if (trace.rank >= 0 && trace.rank < mesh.world()) return;
  fail_request("there is a trace of rank {}; the configuration has {} ranks", trace.rank, mesh.world());
}

class Measurement {
 public:
  Measurement(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces)
      : config_(config), mesh_(mesh) {
    const ResolvedRun run(config);
    for (const RankTrace& trace : traces) {
      require_rank(mesh, trace);
      const Program program = step_program(run, mesh.coordinates(trace.rank));
      if (tables_.stages.empty()) tables_ = program;
      read(program, trace);
    }
  }

  CostTable table() {
    CostTable table;
    for (std::size_t s = 0; s < tables_.segments.size(); ++s) {
      table.segments[tables_.segments[s].name] = compute_cost(static_cast<int>(s));
    }
    for (const auto& [key, samples] : collectives_) {
      UnitCost& cost = table.units[tables_.units[key.first].name];
      const double seconds = std::ranges::min(samples);
      for (const auto& [op, member] : unit_seconds) {
        if (key.second == op) cost.*member = seconds;
      }
    }
    for (const auto& [stage, samples] : messages()) table.messages[std::to_string(stage)] = median_of(samples);
    table.gradient_norm = std::ranges::min(norms_);
    table.optimizer_step = median_of(steps_);
    return table;
  }

 private:
  // A message between two stages of one pipeline: its first rank, step, its send, stage that sends, microbatch.
  using Message = std::tuple<int, std::int64_t, Op, int, int>;

  void read(const Program& program, const RankTrace& trace) {
    const auto& actions = program.ranks[mesh_.coordinates(trace.rank).pp];
    double computed = 0.0;  // end of the compute lane's work so far: a copy waits for it on its own lane
    for (const TracedAction& traced : traced_actions(config_, program, trace)) {
      const Action& action = actions[traced.index];
      const TraceSpan& span = *traced.span;
      add(action, traced.index, span, trace.rank);
      if (span.lane == Lane::compute) computed = std::max(computed, span.end);
      if (!is_host_copy(action.op)) continue;
      host_copies_[*action.segment].push_back(std::max(span.end - std::max(span.begin, computed), 0.0));
    }
  }

  void add(const Action& action, std::size_t index, const TraceSpan& span, int rank) {
    const double seconds = span.end - span.begin;
    if (is_row_exchange(action.op)) {
      rows_[{*action.segment, action.op, action.part.index}].push_back(seconds);
      parts_[{rank, *action.segment, *action.microbatch}] += seconds;
    } else if (is_compute(action.op) && !action.part.last()) {
      parts_[{rank, *action.segment, *action.microbatch}] += seconds;
    } else if (is_compute(action.op)) {
      const int stage_rank = mesh_.coordinates(rank).pp;
      auto& computed = computes_[{*action.segment, action.op}];
      // The ranks of a stage run the segment together. The rank that waits least for the others shows its cost.
      const bool together = !tables_.segments[*action.segment].collectives.empty();
      const double whole = seconds + std::exchange(parts_[{rank, *action.segment, *action.microbatch}], 0.0);
      const auto [place, fresh] =
          computed.try_emplace({together ? 0 : rank, stage_rank, span.step, static_cast<int>(index)}, whole);
      if (!fresh) place->second = std::min(place->second, whole);
    }
    const bool collective = is_gather(action.op) || is_reduction(action.op) || action.op == Op::tie_gradient;
    if (collective) collectives_[{*action.unit, action.op}].push_back(seconds);
    if (action.op == Op::gradient_norm) norms_.push_back(seconds);
    if (action.op == Op::optimizer_step) steps_.push_back(seconds);
    if (!is_send(action.op) && !is_receive(action.op)) return;
    const bool sends = is_send(action.op);
    const bool forward = action.op == Op::send_forward || action.op == Op::receive_forward;
    const Message message{mesh_.group_of(Group::pp, rank).front(), span.step,
                          forward ? Op::send_forward : Op::send_backward,
                          sends ? *action.stage : other_stage(action.op, *action.stage), *action.microbatch};
    (sends ? sends_ : receives_)[message] = span;
  }

  std::optional<double> compute_seconds(int segment, Op op) const {
    const auto found = computes_.find({segment, op});
    if (found == computes_.end()) return std::nullopt;
    std::vector<double> samples;
    for (const auto& [when, seconds] : found->second) samples.push_back(seconds);
    return median_of(std::move(samples));
  }

  ComputeCost compute_cost(int segment) const {
    const auto seconds = [&](Op op) { return compute_seconds(segment, op); };
    const auto forward = seconds(Op::forward), whole = seconds(Op::backward);
    const auto input = seconds(Op::backward_input), weight = seconds(Op::backward_weight);
    if (!forward || (!whole && !(input && weight))) {
      fail_request("no rank traced segment {}; traces of one rank a stage at least are needed",
                   tables_.segments[segment].name);
    }
    const double half = whole.value_or(0.0) / 2.0;
    ComputeCost cost{*forward, input.value_or(half), weight.value_or(half)};
    const auto rows = [&](Op op, int exchange) {
      const auto found = rows_.find({segment, op, exchange});
      return found == rows_.end() ? 0.0 : std::ranges::min(found->second);
    };
    cost.forward_out = rows(Op::rows_forward, 0);
    cost.forward_back = rows(Op::rows_forward, 1);
    cost.backward_out = rows(Op::rows_backward, 0);
    cost.backward_back = rows(Op::rows_backward, 1);
    const auto copies = host_copies_.find(segment);
    if (copies != host_copies_.end()) cost.host_copy = median_of(copies->second);
    return cost;
  }

  // Samples of messages, by the earlier of the two stages.
  KeyedSeconds<int> messages() const {
    KeyedSeconds<int> samples;
    for (const auto& [message, receive] : receives_) {
      const auto send = sends_.find(message);
      if (send == sends_.end()) continue;  // traced at one end only
      const auto& [pipeline, step, op, stage, microbatch] = message;
      const double begin = std::max(receive.begin, send->second.end);
      samples[std::min(stage, other_stage(op, stage))].push_back(std::max(receive.end - begin, 0.0));
    }
    return samples;
  }

  const Config& config_;
  const Mesh& mesh_;
  ProgramTables tables_;
  // By segment: rank (0 for all ranks of a segment run together), pipeline rank, step, position in the list.
  std::map<std::pair<int, Op>, std::map<std::tuple<int, int, std::int64_t, int>, double>> computes_;
  KeyedSeconds<int> host_copies_;                // by segment
  KeyedSeconds<std::tuple<int, Op, int>> rows_;  // exchanges of rows, by segment and number of the exchange
  // Seconds of the parts of a computation that is under way, and of their exchanges: rank, segment, microbatch.
  std::map<std::tuple<int, int, int>, double> parts_;
  KeyedSeconds<std::pair<int, Op>> collectives_;  // by unit
  std::map<Message, TraceSpan> sends_, receives_;
  std::vector<double> norms_, steps_;
};

}  // namespace

RankTrace parse_chrome_trace(const std::string& text, const std::string& name) {
  RankTrace trace;
  try {
    const auto document = nlohmann::json::parse(text);
    trace.work_hash = document.value("otherData", nlohmann::json::object()).value("work_hash", "");
    for (const auto& event : document.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      TraceSpan span;
      span.name = event.at("name");
      if (const auto lane = value_named<Lane>(event.at("cat").get<std::string>())) span.lane = *lane;
      const auto& arguments = event.at("args");
      span.step = arguments.at("step");
      if (arguments.contains("microbatch")) span.microbatch = arguments.at("microbatch").get<int>();
      span.bytes = arguments.value("bytes", std::int64_t{0});
      span.inside = arguments.value("inside", std::string());
      span.begin = 1e-6 * event.at("ts").get<double>();
      span.end = span.begin + 1e-6 * event.at("dur").get<double>();
      trace.rank = event.at("pid");
      (span.inside.empty() ? trace.spans : trace.work).push_back(std::move(span));
    }
  } catch (const nlohmann::json::exception& error) {
    fail_request("{} is no trace of a run: {}", name, error.what());
  }
  if (trace.spans.empty()) fail_request("{} holds no step", name);
  return trace;
}

std::vector<RankTrace> traces_in(const std::filesystem::path& run_directory, int world) {
  constexpr std::string_view before = "trace_rank", behind = ".json";
  std::map<int, std::string> files;
  std::error_code unreadable;  // then there are none
  for (const auto& entry : std::filesystem::directory_iterator(run_directory, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(before) || !name.ends_with(behind)) continue;
    const auto number = std::string_view(name).substr(before.size(), name.size() - before.size() - behind.size());
    const auto rank = parsed_number<int>(number);
    if (rank && *rank < world) files.emplace(*rank, entry.path().string());
  }
  std::vector<RankTrace> traces;
  for (const auto& [rank, file] : files) {
    traces.push_back(parse_chrome_trace(read_text(file), file));
    if (traces.back().rank == rank) continue;
    fail_request("{} is the trace of rank {}, renamed or copied; remove it, or trace the run again", file,
                 traces.back().rank);
  }
  return traces;
}

std::vector<RankTrace> read_traces(const std::filesystem::path& run_directory, int world) {
  std::vector<RankTrace> traces = traces_in(run_directory, world);
  if (!traces.empty()) return traces;
  fail_request("{} holds no trace_rank<R>.json; a run writes them where [profiling] names steps",
               run_directory.string());
}

void require_traced_work(const Config& config, const RankTrace& trace) {
  if (!trace.work_hash.empty() && trace.work_hash != work_hash(config)) {
    fail_request(
        "trace_rank{}.json was recorded with other work than config.toml has: the trace is of another configuration; "
        "remove the run's traces, or trace it again",
        trace.rank);
  }
}

std::vector<TracedAction> traced_actions(const Config& config, const Program& program, const RankTrace& trace) {
  const Mesh mesh(config.parallelism);
  require_rank(mesh, trace);
  require_traced_work(config, trace);
  const auto& actions = program.ranks[mesh.coordinates(trace.rank).pp];
  const auto names = range_names(program, actions);
  std::vector<TracedAction> traced;
  for (const TraceSpan& span : trace.spans) {
    if (!span.lane) continue;
    const std::size_t at = traced.size() % actions.size();
    if (span.name != names[at] || span.microbatch != actions[at].microbatch) {
      fail_request(
          "trace_rank{}.json has {} where the program of the rank has {}: the trace is of another configuration; "
          "remove "
          "the run's traces, or trace it again",
          trace.rank, span.name, names[at]);
    }
    traced.push_back({at, &span});
  }
  if (traced.empty() || traced.size() % actions.size() != 0) {
    fail_request(
        "trace_rank{}.json has {} actions, which is no whole number of steps of {}; remove the run's traces, or trace "
        "it "
        "again",
        trace.rank, traced.size(), actions.size());
  }
  return traced;
}

CostTable measured_costs(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces) {
  if (traces.empty()) fail_request("costs are measured from the traces of a run, and none is given");
  return Measurement(config, mesh, traces).table();
}

}  // namespace weft
