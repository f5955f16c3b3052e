#include "trainer/diagnosis/evidence.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/medians.h"
#include "trainer/costs/step_flops.h"
#include "trainer/costs/topology.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// The sum of `value(group, op, count, bytes)` over the exchanges that gather parameters and reduce gradients. Count and
// bytes are those of all ranks. Islands are left out, because they are inside a node.
template <typename Value>
double sum_of_exchanges(const CommunicationCounters& communication, const Value& value) {
  constexpr std::array groups = {Group::dp_shard,  Group::dp_shard_cp,   Group::dp_replicate,
                                 Group::edp_shard, Group::edp_replicate, Group::tokens};
  double sum = 0.0;
  for (const auto& [key, count] : communication) {
    const auto group = std::ranges::find(groups, key.group, [](Group known) { return name_of(known); });
    if (group == groups.end() || count.count == 0) continue;
    sum += value(*group, key.op, static_cast<double>(count.count), static_cast<double>(count.bytes));
  }
  return sum;
}

bool gathers_units(const std::string& group) {
  constexpr std::array groups = {Group::dp_shard, Group::dp_shard_cp, Group::edp_shard, Group::dp_island,
                                 Group::edp_island};
  return std::ranges::any_of(groups, [&](Group known) { return name_of(known) == group; });
}

std::string text_of(const CommunicationCount& count) {
  return fmt::format("{} of {} bytes", count.count, count.bytes);
}

// The run's counts for the calls of the program. The optimizer may add calls in the same groups, so larger counts are
// accepted. Smaller counts, or other gathers of units, belong to another program.
MeasuredExchange measured_exchange(const RunOutputs& run, const ProgramFigures& program) {
  MeasuredExchange measured;
  const auto& counted = run.steps.back().communication;
  for (const auto& [key, expected] : program.exchange) {
    const auto found = counted.find(key);
    const CommunicationCount count = found == counted.end() ? CommunicationCount{} : found->second;
    const bool differs = count.count < expected.count || count.bytes < expected.bytes ||
                         (gathers_units(key.group) && key.op == CollectiveOp::all_gather && !(count == expected));
    if (differs) {
      fail_request(
          "{}: step {} counted in {} {} {}, and the program of config.toml has {}: it is not the configuration that "
          "this step ran with",
          (run.directory / metrics_file).string(), run.steps.back().step, key.group, name_of(key.op), text_of(count),
          text_of(expected));
    }
    measured.exchange[key] = count;
  }
  for (const auto& [key, count] : counted) {
    if (key.op != CollectiveOp::all_gather || !gathers_units(key.group)) continue;
    if (!program.exchange.contains(key)) {
      fail_request("{}: step {} counted {} in {}, where the program of config.toml gathers nothing",
                   (run.directory / metrics_file).string(), run.steps.back().step, text_of(count), key.group);
    }
    measured.gathers += count.count;
    measured.gather_bytes += count.bytes;
  }
  return measured;
}

std::span<const StepMetrics> steady_steps(const RunOutputs& run, const MeasuredExchange& measured) {
  const auto& steps = run.steps;
  const auto same_exchange = [&](const StepMetrics& step) {
    return std::ranges::all_of(measured.exchange, [&](const auto& entry) {
      const auto found = step.communication.find(entry.first);
      return found != step.communication.end() && found->second == entry.second;
    });
  };
  // A run that goes on has hashes again. Other work may have the same exchange.
  std::size_t part = 0;
  std::optional<RunHashes> hashes;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].hashes && steps[i].hashes != std::exchange(hashes, steps[i].hashes)) part = i;
  }
  std::size_t first = steps.size() - 1;
  while (first > part && same_exchange(steps[first - 1])) --first;
  const std::size_t count = steps.size() - first;
  return std::span(steps).subspan(count > 2 ? first + 2 : steps.size() - 1);
}

}  // namespace

RunHardware run_hardware(const Config& config, const std::string& name, DType compute) {
  Config named = config;
  if (!name.empty()) named.hardware.name = name;
  RunHardware hardware{hardware_of(named)};
  if (hardware.memory) {
    hardware.usable_memory =
        static_cast<std::int64_t>(Verdict::limit * hardware.memory->value - hardware.reserved_memory.value);
  }
  if (config.memory_budget) {
    hardware.usable_memory = std::min(hardware.usable_memory.value_or(*config.memory_budget), *config.memory_budget);
  }
  hardware.reached_flops = hardware.flops_per_second(compute).value * hardware.reached.value;
  return hardware;
}

bool lanes_take_turns(const Config& config) {
  return config.run.device == DeviceKind::cpu;
}

LinkCost link_of(const Mesh& mesh, Group group, const RunHardware& hardware) {
  return shared_link(group_links(mesh, group, hardware.node_ranks()), hardware.inside(), hardware.between_nodes());
}

bool crosses_nodes(const Mesh& mesh, Group group, const RunHardware& hardware) {
  return group_links(mesh, group, hardware.node_ranks()).crosses_nodes();
}

double node_egress_bytes(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware) {
  double most = 0.0;
  for (int begin = 0; begin < mesh.world(); begin += hardware.node_ranks()) {
    const double of_node = sum_of_exchanges(communication, [&](Group group, CollectiveOp op, double, double bytes) {
      const GroupLinks links = node_links(mesh.world(), mesh.steps(group), hardware.node_ranks(), begin);
      return node_egress_bytes(links, op, bytes / mesh.world());
    });
    most = std::max(most, of_node);
  }
  return most;
}

double exchange_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware) {
  const double inside = sum_of_exchanges(communication, [&](Group group, CollectiveOp op, double, double bytes) {
    return crosses_nodes(mesh, group, hardware) ? 0.0 : ring_bytes(op, bytes / mesh.world(), mesh.steps(group).count);
  });
  return std::max(inside / hardware.inside().bytes_per_second,
                  node_egress_bytes(communication, mesh, hardware) / hardware.node_bytes_per_second.value);
}

double link_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware) {
  return sum_of_exchanges(communication, [&](Group group, CollectiveOp op, double count, double bytes) {
    const LinkCost link = link_of(mesh, group, hardware);
    return count / mesh.world() * link_seconds(link, op, bytes / count, mesh.steps(group).count);
  });
}

double RunEvidence::compute_seconds(double flops_per_second) const {
  return step_flops(config()) / (mesh.world() * flops_per_second);
}

std::int64_t RunEvidence::peak_bytes() const {
  std::int64_t peak = 0;
  for (const StepMetrics& step : steady) peak = std::max(peak, step.peak_bytes);
  return peak;
}

std::optional<std::int64_t> RunEvidence::headroom_bytes() const {
  if (!hardware.usable_memory) return std::nullopt;
  return std::max<std::int64_t>(*hardware.usable_memory - peak_bytes(), 0);
}

std::optional<TracedWait> most_waiting(const RunEvidence& evidence,
                                       const std::function<bool(const TracedExchange&)>& counts) {
  std::optional<TracedWait> most;
  for (const TracedRank& rank : evidence.traced) {
    TracedWait wait{rank.rank, 0.0};
    for (const TracedExchange& exchange : rank.exchanges) {
      if (counts(exchange)) wait.seconds += exchange.wait;
    }
    if (!most || wait.seconds > most->seconds) most = wait;
  }
  return most;
}

std::optional<StepCost> waiting_cost(const RunEvidence& evidence,
                                     const std::function<bool(const TracedExchange&)>& counts, const std::string& what,
                                     const StepCost& modelled) {
  if (const auto wait = most_waiting(evidence, counts)) {
    if (wait->seconds <= 0.0) return std::nullopt;
    return StepCost{
        wait->seconds, Basis::measured,
        fmt::format("computation of rank {} stands still for {} (trace_rank{}.json)", wait->rank, what, wait->rank)};
  }
  return modelled.seconds > 0.0 ? std::optional(modelled) : std::nullopt;
}

RunEvidence gather_evidence(const RunOutputs& run, const std::string& hardware) {
  const Config& config = run.config;
  const Mesh mesh(config.parallelism);
  RunEvidence evidence{.run = run,
                       .mesh = mesh,
                       .hardware_name = hardware,
                       .hardware = run_hardware(config, hardware, config.precision_of(Family::dense).compute),
                       .program = program_figures(ResolvedRun(config))};
  evidence.measured = measured_exchange(run, evidence.program);
  evidence.steady = steady_steps(run, evidence.measured);
  std::vector<double> seconds;
  std::ranges::transform(evidence.steady, std::back_inserter(seconds), &StepMetrics::seconds);
  evidence.step_seconds = median_of(std::move(seconds));
  evidence.traced = traced_ranks(config, mesh, run.traces);
  return evidence;
}

}  // namespace weft
