#include "trainer/planning/step_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>

#include "parallel/pipeline/accounts/accounts.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/planning/step_path.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

PathShare share_of(const Action& action, int rank) {
  using Kind = PathShare::Kind;
  if (is_compute(action.op)) return {Kind::compute, rank, action.stage};
  if (is_send(action.op) || is_receive(action.op)) return {Kind::messages};
  if (is_row_exchange(action.op)) return {Kind::rows, rank, action.stage};
  if (takes_kept(action.op)) return {Kind::host, rank, action.stage};
  if (action.op == Op::gradient_norm || action.op == Op::optimizer_step) return {Kind::update};
  const Kind kind = is_gather(action.op) || is_reshard(action.op) ? Kind::gathers : Kind::reductions;
  return {kind, rank, action.stage};
}

std::vector<PathShare> shares_of(const Program& program, const SimulatedStep& step) {
  std::map<std::tuple<PathShare::Kind, int, int>, PathShare> shares;
  for (const auto& [action, rank, seconds] : path_actions(program, step.simulation, step.critical_path)) {
    const PathShare share = share_of(*action, rank);
    const auto found = shares.try_emplace({share.kind, share.rank, share.stage.value_or(-1)}, share).first;
    found->second.seconds += seconds;
  }
  std::vector<PathShare> sorted;
  for (const auto& [key, share] : shares) {
    if (share.seconds > 0.0) sorted.push_back(share);
  }
  std::ranges::stable_sort(sorted, std::ranges::greater{}, &PathShare::seconds);
  return sorted;
}

// The rank that ended a wait: for a message, its sender.
int ended_by(const Program& program, const Action& waiting, const ActionAt& after) {
  const Action& ended = program.ranks[static_cast<std::size_t>(after.rank)][after.index];
  if (is_receive(waiting.op)) return *waiting.peer;
  return is_receive(ended.op) ? *ended.peer : after.rank;
}

std::vector<StandStill> waits_of(const Program& program, const SimulatedStep& step) {
  // Actions on a channel shared with compute delay compute.
  const auto channel_of = [&](Lane lane) { return step.channels.channel[static_cast<std::size_t>(lane)]; };
  std::map<std::tuple<int, Wait, int>, double> waits;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const SimulatedAction& time = step.simulation.ranks[rank][i];
      const Action& action = program.ranks[rank][i];
      if (is_reshard(action.op) || !time.after) continue;
      if (channel_of(lane_of(program, action)) != channel_of(Lane::compute)) continue;
      if (time.waited > 0.0)
        waits[{static_cast<int>(rank), time.wait, ended_by(program, action, *time.after)}] += time.waited;
    }
  }
  std::vector<StandStill> sorted;
  for (const auto& [key, seconds] : waits) {
    const auto& [rank, wait, other] = key;
    sorted.push_back({rank, wait, other, seconds});
  }
  std::ranges::stable_sort(sorted, std::ranges::greater{}, &StandStill::seconds);
  return sorted;
}

std::int64_t saved(const BucketBytes& bytes) {
  return bytes[Bucket::activations] + bytes[Bucket::moe_routing];
}

// Bytes by stage, for the stages of a rank.
std::vector<std::int64_t> left_by_forwards(const Program& program, int rank, const LedgerWalk& walk) {
  std::vector<std::int64_t> left(program.stages.size(), 0);
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  const int microbatch = program.microbatches > 1 ? 1 : 0;
  std::int64_t before = saved(walk.before);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::int64_t after = saved(walk.actions[i].after);
    // Received tensors are kept too; a sent tensor replaces the one of the message before it.
    const Op op = actions[i].op;
    const bool goes_forward =
        op == Op::forward || op == Op::send_forward || op == Op::receive_forward || op == Op::wait_offload;
    if (goes_forward && actions[i].microbatch == microbatch) {
      left[static_cast<std::size_t>(*actions[i].stage)] += after - before;
    }
    before = after;
  }
  return left;
}

// Where ranks of a stage differ, those of other coordinates than were simulated among them; nothing otherwise.
std::vector<ClassPeak> peaks_where_ranks_differ(StepPrograms& programs, Routing routing) {
  const ResolvedRun& run = programs.run();
  const auto stages = static_cast<std::size_t>(run.mesh().degrees().pipeline);
  if (rank_classes(run.config(), run.mesh()).size() == stages) return {};
  return class_peaks(programs, routing);
}

}  // namespace

std::string PathShare::text() const {
  if (kind == Kind::messages) return "messages";
  if (kind == Kind::update) return "norm and optimizer";
  const char* what = kind == Kind::compute   ? "compute"
                     : kind == Kind::gathers ? "gathers"
                     : kind == Kind::rows    ? "expert exchanges"
                     : kind == Kind::host    ? "host copies"
                                             : "reductions";
  return fmt::format("{} of stage {} on rank {}", what, stage.value_or(0), rank);
}

std::string StandStill::text() const {
  switch (wait) {
    case Wait::message:
      return fmt::format("rank {} for messages from rank {}", rank, other);
    case Wait::gather:
      return fmt::format("rank {} for gathers", rank);
    case Wait::reduction:
      return fmt::format("rank {} for reductions", rank);
    case Wait::rows:
      return fmt::format("rank {} for rows of experts", rank);
    case Wait::host:
      return fmt::format("rank {} for copies to or from host memory", rank);
    case Wait::peers:
      return fmt::format("rank {} for rank {} before the update", rank, other);
    default:
      return fmt::format("rank {} for {}", rank, name_of(wait));
  }
}

ForecastStep simulate_run(const ResolvedRun& run, Program program, const ProgramCosts& costs,
                          const LaneChannels& channels, const Coordinates& at) {
  ForecastStep result{std::move(program), {}, {}};
  result.ranks = dry_runs(run.config(), run.mesh(), result.program, at);
  std::vector<LedgerWalk> ledgers;
  for (const DryRun& rank : result.ranks) ledgers.push_back(rank.walk);
  result.step = simulate_step(result.program, costs, channels, ledgers);
  return result;
}

StepForecast forecast_of(const ResolvedRun& run, const ForecastStep& simulated) {
  const auto& [program, step, ranks] = simulated;
  StepForecast forecast;
  forecast.layout = to_string(run.layout(), run.config().model);
  forecast.seconds = step.simulation.seconds;
  forecast.times = step.times;
  for (const RankTimes& times : step.times) {
    forecast.bubble += times.bubble;
    forecast.waits.raise_to(times);
  }
  const double all = forecast.seconds * static_cast<double>(step.times.size());
  forecast.bubble = all > 0.0 ? forecast.bubble / all : 0.0;
  for (int rank = 0; rank < std::ssize(ranks); ++rank) {
    const BucketBytes& bytes = ranks[static_cast<std::size_t>(rank)].peak;
    if (rank == 0 || bytes.total() > forecast.peak.total()) {
      forecast.fullest_rank = rank;
      forecast.peak = bytes;
    }
    const ParameterWindow window = parameter_window(program, rank);
    forecast.gathers += window.gathers;
    forecast.reductions += window.reductions;
    forecast.gathered_bytes += window.gathered_bytes;
  }
  StepPrograms programs(run);
  for (const auto& [other, peak] : peaks_where_ranks_differ(programs, Routing::even)) {
    if (peak.total() <= forecast.peak.total()) continue;
    forecast.fullest_rank = other.at.pp;
    forecast.peak = peak;
  }
  if (routing_decides(run.config())) {
    forecast.worst_peak_bytes = fullest_peak(programs, Routing::worst).total();
  }
  forecast.path = shares_of(program, step);
  forecast.longest_waits = waits_of(program, step);
  return forecast;
}

LayoutMemory layout_memory(const ResolvedRun& run) {
  StepPrograms programs(run);
  const Program& program = programs.of_first_rank();
  LayoutMemory memory;
  memory.kept.resize(program.stages.size());
  memory.peak.resize(program.ranks.size());
  const auto walk = [&](Routing routing, auto set) {
    const std::vector<DryRun> ranks = dry_runs(run.config(), run.mesh(), program, {}, routing);
    std::vector<std::int64_t> peaks;
    for (const DryRun& rank : ranks) peaks.push_back(rank.peak.total());
    for (const auto& [other, peak] : peaks_where_ranks_differ(programs, routing)) {
      std::int64_t& of_stage = peaks[static_cast<std::size_t>(other.at.pp)];
      of_stage = std::max(of_stage, peak.total());
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      set(memory.peak[rank], peaks[rank]);
      const auto left = left_by_forwards(program, static_cast<int>(rank), ranks[rank].walk);
      for (std::size_t stage = 0; stage < left.size(); ++stage) {
        if (program.stages[stage].rank == static_cast<int>(rank)) set(memory.kept[stage], left[stage]);
      }
    }
    return ranks;
  };
  for (const DryRun& rank : walk(Routing::even, [](RoutedBytes&bytes, std::int64_t even) { bytes.even = even; })) {
    memory.before.push_back(rank.walk.before);
  }
  if (routing_decides(run.config())) {
    walk(Routing::worst, [](RoutedBytes& bytes, std::int64_t worst) { bytes.worst = worst; });
  }
  return memory;
}

}  // namespace weft
