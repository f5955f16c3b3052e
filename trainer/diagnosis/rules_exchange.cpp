// Rules on the number of reductions, the links that shards use, and whether a step computes long enough to hide
// exchanges.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/diagnosis/alternatives.h"
#include "trainer/diagnosis/diagnose.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

// Calls that reduce gradients, of all ranks. The all-reduce of a hybrid over replicas is a separate call.
std::int64_t reducing_calls(const CommunicationCounters& exchange) {
  std::int64_t calls = 0;
  for (const auto& [key, count] : exchange) {
    if (key.op == CollectiveOp::reduce_scatter || key.op == CollectiveOp::all_reduce) calls += count.count;
  }
  return calls;
}

bool all_exchanges(const TracedExchange&) {
  return true;
}

// The reason why traces show no loss to exchanges; absent if they do not show that. Traces are valid only for the
// hardware of the run, and computation hides exchanges only if lanes have channels of their own.
std::optional<std::string> hidden(const RunEvidence& evidence) {
  if (!evidence.hardware_name.empty() || lanes_take_turns(evidence.config())) return std::nullopt;
  const auto wait = most_waiting(evidence, all_exchanges);
  if (!wait || wait->seconds >= (timing_tie - 1.0) * evidence.step_seconds) return std::nullopt;
  return fmt::format(
      "computation of rank {}, which waits most, stands still for gathers and reductions for {:.3g} s of "
      "a step",
      wait->rank, wait->seconds);
}

// What defer_reductions() changes, in settings. Gradients in shards are reduced by every microbatch whatever
// `reduction` says.
std::vector<SettingChange> deferring_changes(const RunEvidence& evidence) {
  std::vector<SettingChange> changes;
  const auto change = [&](std::string_view key, const char* value, const auto& holds) {
    if (std::string setting = policy_setting(evidence, key, holds); !setting.empty()) {
      changes.push_back({std::move(setting), value});
    }
  };
  const auto by_strategy = [](const ShardPolicy& policy) {
    return policy.strategy == ShardStrategy::shard_grad_op && policy.reduction.kind == ReductionKind::by_strategy;
  };
  change("strategy", "\"optimizer\"", by_strategy);
  change("reduction", "\"last_microbatch\"", [&](const ShardPolicy& policy) {
    return !by_strategy(policy) && (policy.reduce_every() != 0 || leaves_reduction_open(policy));
  });
  change("accumulation", "\"unsharded\"",
         [](const ShardPolicy& policy) { return policy.accumulation == Accumulation::sharded; });
  return changes;
}

// The run with the faults of all other rules repaired. The exchange that remains can only be hidden by the batch.
Config repaired(const RunEvidence& evidence) {
  Config config = evidence.config();
  compute_in_16_bits(config);
  if (!is_solved(config)) {
    change_policies(config, defer_reductions);
    if (config.stages() > 1) change_policies(config, keep_parameters);
  }
  if (const auto hybrid = hybrid_of(config, evidence.hardware)) {
    const auto other = alternative_of(evidence, *hybrid);
    if (other && other->fits.value_or(true)) return *hybrid;
  }
  return config;
}

// The run with these batches. Absent if they are refused, or if their program is too long to be compiled beside a
// diagnosis.
std::optional<Alternative> with_batch(const RunEvidence& evidence, std::int64_t batch, std::int64_t microbatch) {
  constexpr std::int64_t most_microbatches = 1024;
  Config config = evidence.config();
  config.training.global_batch_size = batch;
  config.training.microbatch_size = microbatch;
  if (config.microbatches() > most_microbatches) return std::nullopt;
  return alternative_of(evidence, config);
}

}  // namespace

// Calls are one per unit, one per microbatch, or one per N microbatches. The limit 1.5 passes a step that reduces a few
// units twice. They are those of the program: communicators count what routers sum for `aux_loss` among them.
RuleVerdict check_reductions(const RunEvidence& evidence) {
  constexpr double repeated = 1.5;
  const Config& config = evidence.config();
  const std::int64_t calls = reducing_calls(evidence.program.exchange);
  if (calls == 0) return RuleVerdict::silent("no gradient is reduced between ranks");
  if (is_solved(config)) return RuleVerdict::silent("reductions are solved for under shard.memory_budget");
  if (config.microbatches() == 1) return RuleVerdict::silent("a step is one microbatch");
  const auto deferred = alternative_with(evidence, defer_reductions);
  if (!deferred) return RuleVerdict::silent();
  const std::int64_t least = reducing_calls(deferred->exchange);
  if (static_cast<double>(calls) <= repeated * static_cast<double>(least)) return RuleVerdict::silent();
  // If Weft chooses the reduction, gradients stay unreduced only in memory that is known to be free.
  const bool left_open = std::ranges::any_of(config.shard_by_family,
                                             [](const auto& entry) { return leaves_reduction_open(entry.second); });
  if (left_open && !evidence.headroom_bytes()) {
    return RuleVerdict::silent(
        "{} reducing calls, as full_shard promises where nothing says what memory a "
        "rank has; gradients that wait take {}",
        calls, deferred->memory);
  }
  if (!deferred->fits.value_or(true)) {
    return RuleVerdict::silent("{} reducing calls, and gradients that wait would not fit: they take {}", calls,
                               deferred->memory);
  }
  DiagnosedFault finding{
      .sentence = fmt::format("gradients are reduced {:.1f} times a step, though they could wait for the "
                              "last of {} microbatches",
                              static_cast<double>(calls) / static_cast<double>(least), config.microbatches())};
  const auto again = [](const TracedExchange& exchange) { return !exchange.gathers() && exchange.again; };
  finding.step = waiting_cost(evidence, again, "reductions before a unit's last", saved_on_links(evidence, *deferred));
  finding.evidence = {{"reducing calls of a step, all ranks", fmt::format("{}", calls),
                       fmt::format("{} when they wait", least), "config.toml", Basis::predicted},
                      memory_line(evidence, "waiting", *deferred)};
  finding.changes = deferring_changes(evidence);
  return RuleVerdict::found(std::move(finding));
}

// Hybrid sharding sends 2.8 times less between two nodes with reductions in 16 bits, and 1.9 times less in float32. A
// gain below 1.5 has other causes in the layout. If computation hides the traffic out of the node, the smaller memory
// of full sharding decides.
RuleVerdict check_topology(const RunEvidence& evidence) {
  constexpr double pays = 1.5;
  const RunHardware& hardware = evidence.hardware;
  const Config& config = evidence.config();
  const double egress = node_egress_bytes(evidence.measured.exchange, evidence.mesh, hardware);
  if (evidence.mesh.world() <= hardware.node_ranks()) return RuleVerdict::silent("all ranks are in one node");
  if (egress == 0.0) return RuleVerdict::silent("no shard leaves a node of {} ranks", hardware.node_ranks());
  const auto hybrid = hybrid_of(config, hardware);
  if (!hybrid) return RuleVerdict::silent("shard groups stay in their nodes, or no hybrid's would");
  const auto figures = alternative_of(evidence, *hybrid);
  if (!figures) return RuleVerdict::silent();
  const double other = node_egress_bytes(figures->exchange, Mesh(hybrid->parallelism), hardware);
  if (egress < pays * other) return RuleVerdict::silent();
  const double seconds = egress / hardware.node_bytes_per_second.value;
  const double compute = evidence.compute_seconds(hardware.reached_flops);
  if (seconds <= compute) {
    return RuleVerdict::silent("{:.0f} bytes leave a node in {:.3g} s, which {:.3g} s of computation hide", egress,
                               seconds, compute);
  }
  if (const auto why = hidden(evidence)) return RuleVerdict::silent("{}", *why);
  if (!figures->fits.value_or(true)) {
    return RuleVerdict::silent("hybrid sharding would send {:.1f} times less, and does not fit: it takes {}",
                               egress / other, figures->memory);
  }
  DiagnosedFault finding{.sentence =
                             fmt::format("shard groups cross nodes of {} ranks: hybrid sharding would send {:.1f} "
                                         "times less between them",
                                         hardware.node_ranks(), egress / other)};
  finding.step = waiting_cost(evidence, all_exchanges, "gathers and reductions",
                              {(egress - other) / hardware.node_bytes_per_second.value, Basis::modelled,
                               fmt::format("bytes that leave a node of {}, at its rate", hardware.name)});
  const double model =
      static_cast<double>(count_parameters(config.model).total * size_of(config.precision_of(Family::dense).compute));
  finding.evidence = {
      {"bytes that leave the busiest node in a step",
       fmt::format("{:.0f}, {:.1f} times the model's {:.0f}", egress, egress / model, model),
       fmt::format("{:.0f} with hybrid sharding", other), metrics_file},
      {"seconds that takes",
       fmt::format("{:.3g} at {:.3f} GB/s a node", seconds, 1e-9 * hardware.node_bytes_per_second.value),
       fmt::format("{:.3g} of computation to hide it, modelled", compute), std::string(hardware.name), Basis::modelled},
      memory_line(evidence, "hybrid sharding", *figures)};
  finding.changes = {{"parallelism.data_replicate", fmt::format("{}", hybrid->parallelism.data_replicate)},
                     {"parallelism.data_shard", fmt::format("{}", hybrid->parallelism.data_shard)}};
  return RuleVerdict::found(std::move(finding));
}

// Bytes and tokens are exact; rates of computation and links are those that the hardware reaches. No trace of this
// batch shows whether another batch breaks even. If traces show that computation waits for nothing, the model is not
// believed.
RuleVerdict check_batch(const RunEvidence& evidence) {
  const Config& config = evidence.config();
  if (exchange_seconds(evidence.measured.exchange, evidence.mesh, evidence.hardware) == 0.0)
    return RuleVerdict::silent("ranks share no parameters");
  const Config best = repaired(evidence);
  const auto figures = alternative_of(evidence, best);
  if (!figures) return RuleVerdict::silent();
  const RunHardware hardware = run_hardware(config, evidence.hardware_name, best.precision_of(Family::dense).compute);
  const double exchange = exchange_seconds(figures->exchange, Mesh(best.parallelism), hardware);
  const double compute = evidence.compute_seconds(hardware.reached_flops);
  if (exchange <= compute) return RuleVerdict::silent();
  if (const auto why = hidden(evidence)) return RuleVerdict::silent("{}", *why);
  const int text_ranks = config.parallelism.data() * config.parallelism.context;  // they share the tokens of a step
  const double tokens = static_cast<double>(evidence.run.steps.back().tokens) / text_ranks;
  const double needed = tokens * exchange / compute;
  const double times = std::ceil(exchange / compute);
  // If every microbatch gathers for itself, only larger microbatches have more computation to hide gathers behind.
  const bool each_gathers = figures->gathers > figures->gathered_units;
  const auto batch = static_cast<std::int64_t>(times) * config.training.global_batch_size;
  const auto microbatch = (each_gathers ? static_cast<std::int64_t>(times) : 1) * config.training.microbatch_size;
  const auto larger = with_batch(evidence, batch, microbatch);
  if (larger && !larger->fits.value_or(true)) {
    return RuleVerdict::silent(
        "{:.0f} tokens of a rank do not hide the exchange, and {:.0f} times as many do not fit: {}", tokens, times,
        larger->memory);
  }
  DiagnosedFault finding{
      .sentence = fmt::format("a rank has {:.0f} tokens a step: too few to compute on while shards travel", tokens)};
  finding.step = waiting_cost(evidence, all_exchanges, "gathers and reductions",
                              {exchange - compute, Basis::modelled,
                               fmt::format("bytes at the rates of {} beyond its computation", hardware.name)});
  finding.evidence = {
      {"tokens of a rank in a step", fmt::format("{:.0f}", tokens), fmt::format("at least {:.0f}", needed),
       metrics_file},
      {"seconds that shards travel",
       fmt::format("{:.3g}", exchange_seconds(evidence.measured.exchange, evidence.mesh, evidence.hardware)),
       fmt::format("{:.3g} with all that can be spared, against {:.3g} of computation, modelled", exchange, compute),
       std::string(hardware.name), Basis::modelled}};
  if (larger) finding.evidence.push_back(memory_line(evidence, "the larger batch", *larger));
  finding.changes = {{"training.global_batch_size", fmt::format("{}", batch)}};
  if (each_gathers) {
    finding.changes.push_back(
        {"training.microbatch_size", fmt::format("{}", microbatch), "every microbatch gathers for itself"});
  }
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
