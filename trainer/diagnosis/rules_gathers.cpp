// Rules on gathers of parameters: their number, their size, their dtype and their time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "parallel/runtime/medians.h"
#include "parallel/shard/wrap.h"
#include "trainer/diagnosis/alternatives.h"
#include "trainer/diagnosis/diagnose.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

constexpr const char* nothing_gathered = "nothing is gathered";

// The link of the slowest group that gathers.
LinkCost gather_link(const RunEvidence& evidence) {
  for (const Group group : {Group::dp_shard, Group::dp_shard_cp, Group::edp_shard}) {
    const bool used = evidence.measured.exchange.contains({std::string(name_of(group)), CollectiveOp::all_gather});
    if (used && crosses_nodes(evidence.mesh, group, evidence.hardware)) {
      return link_of(evidence.mesh, group, evidence.hardware);
    }
  }
  return evidence.hardware.inside();
}

// A ring of n ranks takes (n - 1) latency + (n - 1) / n payload / rate. At the returned payload both terms are equal.
double break_even_payload(const RunEvidence& evidence) {
  const LinkCost link = gather_link(evidence);
  return evidence.program.shard_ranks * link.latency * link.bytes_per_second;
}

std::string names_of(const std::vector<WholeStageUnit>& units) {
  std::vector<std::string> names;
  for (const WholeStageUnit& unit : units) names.push_back(unit.name);
  return fmt::format("{}", fmt::join(names, " and "));
}

// A solved timing fills its budget for any units, so its peak carries no information about them.
void add_smaller_units(const RunEvidence& evidence, const Alternative& by_block, DiagnosedFault& finding) {
  finding.evidence.push_back({"gathers of a step, all ranks", fmt::format("{}", evidence.measured.gathers),
                              fmt::format("{} by block", by_block.gathers), metrics_file});
  finding.evidence.push_back({"full parameters at the fullest rank's peak",
                              fmt::format("{} bytes", evidence.run.steps.back().memory[Bucket::unsharded_parameters]),
                              fmt::format("the whole peak is predicted as {} bytes, and {} by block",
                                          evidence.program.peak_bytes, by_block.peak_bytes),
                              metrics_file});
  if (!is_solved(evidence.config())) finding.memory = predicted_excess(by_block, "with units by block");
}

}  // namespace

// A unit with all blocks of a stage counts even if other units exist. In a hybrid, experts are never in the unit of the
// dense parts, so each unit is judged by itself. Units below the payload of one latency are better gathered at once;
// minimum_bytes does that, so such families are skipped.
RuleVerdict check_root_only_units(const RunEvidence& evidence) {
  if (evidence.measured.gathers == 0) return RuleVerdict::silent(nothing_gathered);
  const Config& config = evidence.config();
  std::vector<WholeStageUnit> whole = evidence.program.whole_stage_units;
  std::erase_if(whole, [&](const WholeStageUnit& unit) {
    return config.shard_by_family.at(unit.family).wrap.kind == WrapKind::minimum_bytes;
  });
  if (whole.empty()) return RuleVerdict::silent();
  const WholeStageUnit& largest = *std::ranges::max_element(whole, {}, &WholeStageUnit::bytes);
  const double needed = break_even_payload(evidence);
  if (static_cast<double>(largest.bytes) <= needed) {
    return RuleVerdict::silent(
        "{} has {} blocks, but its {} bytes are less than its link moves within its latency, {:.0f}", largest.name,
        largest.blocks, largest.bytes, needed);
  }
  DiagnosedFault finding{.sentence = fmt::format("all blocks of a stage are gathered in one unit, {}: none is computed "
                                                 "before all are there, and all are there at once",
                                                 names_of(whole))};
  finding.evidence = {{fmt::format("bytes of a gather of {}", largest.name), fmt::format("{}", largest.bytes),
                       fmt::format("a unit for each of {} blocks", largest.blocks), "config.toml", Basis::predicted}};
  const auto by_block = alternative_with(evidence, [](ShardPolicy& policy) { policy.wrap = {}; });
  if (by_block) add_smaller_units(evidence, *by_block, finding);
  // If lanes take turns, no gather runs beside computation, for any units.
  const auto of_whole = [&](const TracedExchange& exchange) {
    return exchange.gathers() && std::ranges::find(whole, exchange.unit, &WholeStageUnit::unit) != whole.end();
  };
  if (!lanes_take_turns(config)) finding.step = waiting_cost(evidence, of_whole, "gathers of these units");
  finding.changes = {
      {policy_setting(evidence, "wrap", [](const ShardPolicy& policy) { return policy.wrap.kind != WrapKind::block; }),
       "\"block\""}};
  return RuleVerdict::found(std::move(finding));
}

// One gather per unit and visit and one per use differ at least by a factor of the number of microbatches. The limit
// 1.5 is below that for two microbatches, and passes units that are used twice at the ends of a step.
RuleVerdict check_repeated_gathers(const RunEvidence& evidence) {
  constexpr double repeated = 1.5;
  if (evidence.measured.gathers == 0) return RuleVerdict::silent(nothing_gathered);
  const Config& config = evidence.config();
  if (is_solved(config)) return RuleVerdict::silent("gathers are solved for under shard.memory_budget");
  if (config.microbatches() == 1) return RuleVerdict::silent("a step is one microbatch");
  const auto kept = alternative_with(evidence, keep_parameters);
  const auto gathers = evidence.measured.gathers;
  if (!kept || static_cast<double>(gathers) <= repeated * static_cast<double>(kept->gathers))
    return RuleVerdict::silent();
  // Sharding exists to drop parameters, so only memory known to be free speaks for keeping them.
  if (!kept->fits.has_value()) {
    return RuleVerdict::silent("{} gathers; keeping parameters, {}, would take {}", gathers, kept->gathers,
                               kept->memory);
  }
  if (!*kept->fits) {
    return RuleVerdict::silent("{} gathers, and keeping parameters would not fit: it takes {}", gathers, kept->memory);
  }
  DiagnosedFault finding{.sentence =
                             fmt::format("parameters are gathered again for every use, though they could stay between "
                                         "{} microbatches",
                                         config.microbatches())};
  const auto again = [](const TracedExchange& exchange) { return exchange.gathers() && exchange.again; };
  finding.step = waiting_cost(evidence, again, "gathers that repeat one of the step", saved_on_links(evidence, *kept));
  finding.evidence = {
      {"gathers of a step, all ranks", fmt::format("{}", gathers),
       fmt::format("{} for {} units under residency \"step\"", kept->gathers, kept->gathered_units), metrics_file},
      {"bytes gathered in a step, all ranks", fmt::format("{}", evidence.measured.gather_bytes),
       fmt::format("{}", kept->gather_bytes), metrics_file},
      memory_line(evidence, "keeping", *kept)};
  finding.changes = {{policy_setting(evidence, "residency",
                                     [](const ShardPolicy& policy) {
                                       return policy.residency.kind != Residency::step ||
                                              !policy.residency_by_stage.empty();
                                     }),
                      "\"step\""}};
  return RuleVerdict::found(std::move(finding));
}

// Below this payload a gather is mostly latency. The median is used, because one small unit among large ones is no
// fault. The rule also requires that merging saves a third of the gathers.
RuleVerdict check_small_units(const RunEvidence& evidence) {
  if (evidence.measured.gathers == 0) return RuleVerdict::silent(nothing_gathered);
  const double needed = break_even_payload(evidence);
  std::vector<double> traced;
  for (const TracedRank& rank : evidence.traced) {
    for (const TracedExchange& exchange : rank.exchanges) {
      if (exchange.gathers()) traced.push_back(static_cast<double>(exchange.bytes));
    }
  }
  const bool has_trace = !traced.empty();
  const auto gathers = evidence.measured.gathers;
  const double payload = has_trace ? median_of(traced)
                                   : static_cast<double>(evidence.measured.gather_bytes) / static_cast<double>(gathers);
  if (payload >= needed) return RuleVerdict::silent();
  const WrapPolicy wrap{WrapKind::minimum_bytes, static_cast<std::int64_t>(std::nearbyint(needed))};
  const auto merged = alternative_with(evidence, [&](ShardPolicy& policy) { policy.wrap = wrap; });
  if (!merged || 3 * merged->gathers > 2 * gathers) {
    return RuleVerdict::silent("units are small ({:.0f} bytes), but merging them would hardly spare gathers", payload);
  }
  if (!merged->fits.value_or(true)) {
    return RuleVerdict::silent("units are small ({:.0f} bytes), and merging them would not fit: it takes {}", payload,
                               merged->memory);
  }
  const LinkCost link = gather_link(evidence);
  DiagnosedFault finding{.sentence = "a gather moves less than its link does within its latency"};
  const auto small = [&](const TracedExchange& exchange) {
    return exchange.gathers() && static_cast<double>(exchange.bytes) < needed;
  };
  finding.step = waiting_cost(evidence, small, "gathers below that size", saved_on_links(evidence, *merged));
  finding.evidence = {
      {has_trace ? "bytes of a gather, median" : "bytes of a gather, mean", fmt::format("{:.0f}", payload),
       fmt::format("at least {:.0f}: {} ranks x {:.1f} us x {:.1f} GB/s ({})", needed, evidence.program.shard_ranks,
                   1e6 * link.latency, 1e-9 * link.bytes_per_second, evidence.hardware.name),
       has_trace ? "trace_rank*.json" : metrics_file},
      {"gathers of a step, all ranks", fmt::format("{}", gathers), fmt::format("{} when merged", merged->gathers),
       metrics_file},
      memory_line(evidence, "merging", *merged)};
  finding.changes = {
      {policy_setting(evidence, "wrap", [](const ShardPolicy&) { return true; }), "\"" + to_string(wrap) + "\""}};
  return RuleVerdict::found(std::move(finding));
}

// A parameter takes 2 bytes in 16 bits and 4 in float32. Above a mean of 3, more than half are gathered in float32,
// which is more than a family that needs float32.
RuleVerdict check_gather_dtype(const RunEvidence& evidence) {
  constexpr double mostly_float32 = 3.0;
  if (evidence.measured.gathers == 0) return RuleVerdict::silent(nothing_gathered);
  const double elements = static_cast<double>(evidence.program.gathered_elements);
  const double bytes = static_cast<double>(evidence.measured.gather_bytes) / elements;
  if (bytes <= mostly_float32) return RuleVerdict::silent();
  DiagnosedFault finding{.sentence = "parameters travel in float32: twice the bytes that 16 bits need"};
  finding.evidence = {
      {"bytes of a gathered parameter", fmt::format("{:.2f}", bytes), "2 in bfloat16 or float16", metrics_file},
      {"bytes gathered in a step, all ranks", fmt::format("{}", evidence.measured.gather_bytes),
       fmt::format("{:.0f}", 2.0 * elements), metrics_file}};
  Config config = evidence.config();
  compute_in_16_bits(config);
  if (const auto narrow = alternative_of(evidence, config)) {
    finding.step = waiting_cost(evidence, &TracedExchange::gathers, "gathers", saved_on_links(evidence, *narrow));
    finding.memory = predicted_excess(*narrow, "in 16 bits");
  }
  const bool on_cpu = evidence.config().run.device == DeviceKind::cpu;
  finding.changes = {{float32_setting(evidence), "\"bfloat16\"",
                      fmt::format("parameters, gradients' sums and optimizer stay in float32{}",
                                  on_cpu ? "; a CPU may compute slower in it: weft bench step tells" : "")}};
  return RuleVerdict::found(std::move(finding));
}

// A late gather cannot be hidden. With a lookahead, only gathers that follow the reshard of the same unit stay late. So
// a lookahead must remove more than half of the late gathers, and these must be more than a quarter of all. Waits in
// the traces count from one hundredth of a step on, the resolution of timings.
RuleVerdict check_lookahead(const RunEvidence& evidence) {
  if (evidence.measured.gathers == 0) return RuleVerdict::silent(nothing_gathered);
  if (lanes_take_turns(evidence.config())) {
    return RuleVerdict::silent("the lanes of this device take turns: an earlier gather would hide behind nothing");
  }
  const ProgramFigures& program = evidence.program;
  if (4 * program.late_gathers <= program.gathers) return RuleVerdict::silent();
  const auto ahead =
      alternative_with(evidence, [](ShardPolicy& policy) { policy.lookahead = std::max(policy.lookahead, 1); });
  if (!ahead || 2 * ahead->late_gathers >= program.late_gathers) return RuleVerdict::silent();
  const auto late = [](const TracedExchange& exchange) { return exchange.late; };
  const auto wait = most_waiting(evidence, late);
  if (wait && wait->seconds < (timing_tie - 1.0) * evidence.step_seconds) {
    return RuleVerdict::silent(
        "{} of {} gathers start late, and computation of rank {}, which waits most, "
        "stands still for {:.3g} s of a step",
        program.late_gathers, program.gathers, wait->rank, wait->seconds);
  }
  DiagnosedFault finding{.sentence = "gathers start only when the computation before their use has ended"};
  finding.evidence = {{"gathers with nothing computed between them and their use",
                       fmt::format("{} of {}", program.late_gathers, program.gathers),
                       fmt::format("{} with a lookahead of 1", ahead->late_gathers), "config.toml", Basis::predicted}};
  finding.step = waiting_cost(evidence, late, "these gathers");
  finding.changes = {
      {policy_setting(evidence, "lookahead", [](const ShardPolicy& policy) { return policy.lookahead == 0; }), "1"}};
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
