#include "trainer/planning/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/checkpoint/rank_writer.h"
#include "trainer/costs/hardware.h"
#include "trainer/costs/step_flops.h"
#include "trainer/costs/topology.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/chosen_timing.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// The item of an allocation: the unit or the segment of its action.
LiveItem item_of(const Program& program, const std::vector<Action>& actions, const LiveTensors& live) {
  LiveItem item{.bucket = live.bucket, .bytes = live.bytes};
  if (!live.action) return item;
  const Action& action = actions[*live.action];
  item.microbatch = action.microbatch;
  if (action.unit) {
    item.what = program.units[static_cast<std::size_t>(*action.unit)].name;
  } else if (action.segment) {
    item.what = program.segments[static_cast<std::size_t>(*action.segment)].name;
  } else if (action.stage) {
    item.what = fmt::format("message of stage {}", *action.stage);
  } else {
    item.what = "update";
  }
  // The accumulator of a unit serves all microbatches.
  if (live.bucket == Bucket::unsharded_gradients) item.microbatch = std::nullopt;
  return item;
}

std::vector<LiveItem> items_of(const Program& program, const std::vector<Action>& actions, const DryRun& dry) {
  std::map<std::tuple<Bucket, std::string, int>, LiveItem> items;
  for (const LiveTensors& live : dry.live) {
    LiveItem item = item_of(program, actions, live);
    const std::tuple key(item.bucket, item.what, item.microbatch.value_or(-1));
    const auto [found, fresh] = items.try_emplace(key, item);
    if (!fresh) found->second.bytes += item.bytes;
  }
  std::vector<LiveItem> sorted;
  for (auto& [key, item] : items) sorted.push_back(std::move(item));
  std::ranges::stable_sort(sorted, std::ranges::greater{}, &LiveItem::bytes);
  return sorted;
}

// Islands and ties have no degrees of their own.
GroupLinks links_of(const Config& config, const Mesh& mesh, const Program& program, Group group, int ranks_per_node) {
  if (group == Group::tied) {
    GroupLinks links = group_links(mesh, Group::pp, ranks_per_node);
    links.ranks = 1;
    for (const ProgramUnit& unit : program.units) {
      links.ranks = std::max(links.ranks, static_cast<int>(tied_ranks(program, unit).size()));
    }
    return links;
  }
  if (group != Group::dp_island && group != Group::edp_island) return group_links(mesh, group, ranks_per_node);
  GroupLinks most;
  for (const Island& island : islands_of(config)) {
    if ((island.shard_group == Group::edp_shard) != (group == Group::edp_island)) continue;
    const GroupLinks links =
        group_links(mesh.world(), island_steps(mesh, island.shard_group, island.ranks), ranks_per_node);
    if (links.ranks > most.ranks) most = links;
  }
  return most;
}

std::vector<GroupTraffic> traffic_of(const Config& config, const Mesh& mesh, const Program& program,
                                     const std::vector<RankPlan>& ranks, int ranks_per_node) {
  std::map<CommunicationKey, GroupTraffic> sums;
  for (const RankPlan& rank : ranks) {
    for (const auto& [key, count] : rank.communication) {
      GroupTraffic& traffic = sums[key];
      traffic.group = key.group;
      traffic.op = key.op;
      traffic.count += count.count * rank.ranks.ranks;
      traffic.bytes += static_cast<double>(count.bytes) * rank.ranks.ranks;
      traffic.payload = std::max(traffic.payload, count.bytes);
    }
  }
  std::vector<GroupTraffic> result;
  for (auto& [key, traffic] : sums) {
    const GroupLinks links = links_of(config, mesh, program, *value_named<Group>(key.group), ranks_per_node);
    const auto payload = static_cast<double>(traffic.payload);
    traffic.sent = ring_bytes(key.op, payload, links.ranks);
    traffic.node_egress = weft::node_egress_bytes(links, key.op, payload);
    result.push_back(std::move(traffic));
  }
  return result;
}

// Resolves the run for the hardware's device.
ResolvedRun resolved_for(const Config& given, const Hardware& hardware) {
  Config judged = given;
  judged.run.device = device_of(hardware);
  require_full_nodes(judged.parallelism.world(), hardware.node_ranks());
  return ResolvedRun(judged);
}

// Runs both concurrently if the host has the cores.
void both(const std::function<void()>& one, const std::function<void()>& other) {
  spread_work(2, dry_threads(), [&](std::size_t i) { (i == 0 ? one : other)(); });
}

}  // namespace

std::int64_t RunPlan::sent_bytes() const {
  double sent = 0.0;
  for (const GroupTraffic& traffic : communication) sent += traffic.sent;
  return static_cast<std::int64_t>(sent);
}

std::optional<std::int64_t> RunPlan::worst_bytes() const {
  std::optional<std::int64_t> most;
  for (const RankPlan& rank : ranks) {
    if (rank.worst_bytes) most = std::max(most.value_or(0), *rank.worst_bytes);
  }
  return most;
}

Fit RunPlan::worst_fit() const {
  const auto worst = worst_bytes();
  return worst ? verdict.fit_of(*worst + verdict.reserved) : verdict.fit;
}

std::string RunPlan::fit_words() const {
  if (!worst_bytes() || verdict.fit == Fit::unknown) return std::string(words_of(verdict.fit));
  return fmt::format("{} with even routing, {} with worst routing", words_of(verdict.fit), words_of(worst_fit()));
}

std::vector<RankPlan> plan_ranks(StepPrograms& programs, PlanRoutings routings) {
  const ResolvedRun& run = programs.run();
  return of_each_class(programs, [&](const RankClass& ranks, const Program& program) {
    const auto& actions = program.ranks[static_cast<std::size_t>(ranks.at.pp)];
    const DryRun dry = dry_run(run.config(), run.mesh(), program, ranks.first);
    RankPlan plan{.ranks = ranks, .peak = dry.peak};
    plan.peak_action = dry.peak_action ? format_action(program, actions[*dry.peak_action]) : "the start of the step";
    plan.live = items_of(program, actions, dry);
    plan.communication = dry.communication;
    plan.integral = live_integral(program, ranks.at.pp);
    plan.saved_bytes = dry.saved_bytes;
    plan.host = dry.host;
    if (routings == PlanRoutings::even_and_worst && routing_decides(run.config())) {
      plan.worst_bytes = dry_peak(run.config(), run.mesh(), program, ranks.first, Routing::worst).total();
    }
    return plan;
  });
}

namespace {

struct TimedStep {
  ProgramCosts costs;
  Simulation simulation;
  StepTime time;
};

TimedStep timed_step(const Config& config, const Mesh& mesh, const Program& program, const Hardware& hardware) {
  TimedStep step{.costs = step_costs(config, mesh, program, hardware), .simulation = {}, .time = {}};
  const ProgramCosts& costs = step.costs;
  const LaneChannels channels = lane_channels(config);
  const Simulation& simulation = step.simulation = simulate(program, costs, channels);
  StepTime& time = step.time = {.seconds = simulation.seconds, .adapters = busiest_adapters(program, costs, channels)};
  const auto ranks = static_cast<int>(program.ranks.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const RankTimes times = rank_times(program, simulation, rank, channels);
    time.bubble += times.bubble / (ranks * simulation.seconds);
    time.waits.raise_to(times);
  }
  const double peak = hardware.flops_per_second(config.precision_of(Family::dense).compute).value;
  time.mfu = published_step_flops(config) / (time.seconds * mesh.world() * peak);
  return step;
}

// Sets the plan's time, byte-seconds, critical path and exposed collectives.
void set_time(RunPlan& plan, const Config& config, const Mesh& mesh, const Program& program, const Hardware& hardware) {
  const TimedStep step = timed_step(config, mesh, program, hardware);
  ComputeCollectives collectives;  // a table of costs does not tell them from computation
  if (!config.pipeline.has_cost_table()) {
    const HardwareCosts costs = hardware_costs(hardware, config, mesh);
    const GroupSizes sizes = group_sizes(mesh);
    collectives = compute_collectives(program, timed_flops(config, program, hardware), costs, sizes);
    plan.inside = inside_computation(program, compute_collectives(program, {}, costs, sizes));
  }
  plan.time = step.time;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    plan.byte_seconds.push_back(byte_seconds(memory_curve(program, step.simulation, rank, lane_channels(config))));
  }
  plan.path = path_parts(program, step.costs, step.simulation, collectives);
  plan.mean = mean_parts(program, step.costs, step.simulation, collectives, lane_channels(config));
  plan.exposed = inside_computation(program, collectives);
}

}  // namespace

StepTime step_time(const Config& config, const Mesh& mesh, const Program& program, const Hardware& hardware) {
  return timed_step(config, mesh, program, hardware).time;
}

RunOutline outline_run(const Config& config, const Hardware& hardware, Routing routing) {
  const ResolvedRun run = resolved_for(config, hardware);
  RunOutline outline;
  outline.world = run.mesh().world();
  StepPrograms programs(run);
  const Program& program = programs.of_first_rank();
  both([&] { outline.peak = fullest_peak(programs, routing); },
       [&] { outline.time = step_time(run.config(), run.mesh(), program, hardware); });
  outline.verdict = judge(hardware, outline.peak, host_need(programs));
  return outline;
}

Verdict least_need(const Config& config, const Hardware& hardware, Routing routing) {
  const ResolvedRun run = resolved_for(with_least_kept(config), hardware);
  StepPrograms programs(run);
  return judge(hardware, fullest_peak(programs, routing), host_need(programs));
}

std::optional<std::int64_t> worst_need(const Config& config, const Hardware& hardware) {
  if (!routing_decides(config)) return std::nullopt;
  return judge(hardware, fullest_peak(resolved_for(config, hardware), Routing::worst)).needed;
}

RunPlan plan_run(const Config& given, const Hardware& hardware, PlanRoutings routings) {
  const ResolvedRun run = resolved_for(given, hardware);
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  const int ranks_per_node = hardware.node_ranks();
  RunPlan plan{.layout = to_string(run.layout(), config.model),
               .schedule = config.pipeline.schedule,
               .residency = to_string(config.shard.residency),
               .world = mesh.world(),
               .nodes = (mesh.world() + ranks_per_node - 1) / ranks_per_node,
               .microbatches = config.microbatches(),
               .parameters = count_parameters(config.model),
               .flops_per_token =
                   training_flops_per_token(config.model, config.training.sequence_length, config.training.frozen),
               .step_flops = published_step_flops(config)};
  StepPrograms programs(run);
  const Program& program = programs.of_first_rank();
  both([&] { plan.ranks = plan_ranks(programs, routings); }, [&] { set_time(plan, config, mesh, program, hardware); });
  const auto total = [](const RankPlan& rank) { return rank.peak.total(); };
  plan.fullest = static_cast<std::size_t>(std::ranges::max_element(plan.ranks, {}, total) - plan.ranks.begin());
  plan.communication = traffic_of(config, mesh, program, plan.ranks, ranks_per_node);
  const double adapters =
      config.pipeline.has_cost_table()
          ? busiest_adapters(program, modelled_costs(config, mesh, program, hardware), lane_channels(config))
          : plan.time.adapters;
  plan.node_egress_bytes = adapters * hardware.node_bytes_per_second.value;
  for (const RankPlan& rank : plan.ranks) {
    plan.saved_bytes = std::max(plan.saved_bytes, rank.saved_bytes);
    if (rank.host.total() > plan.host.total()) plan.host = rank.host;
  }
  plan.verdict = judge(hardware, plan.peak(), plan.host.total());
  plan.host_bytes = staging_bytes(plan.saved_bytes, config.checkpoint.host_memory);
  return plan;
}

}  // namespace weft
