#include "tools/plan/plan_reports.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/planning/compare.h"
#include "trainer/planning/published.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

// The unit of the largest value of a plan.
ByteUnit largest_unit(const std::vector<StrategyPlan>& plans, std::int64_t (*value)(const RunPlan& plan)) {
  std::int64_t most = 0;
  for (const StrategyPlan& each : plans) {
    if (each.plan) most = std::max(most, value(*each.plan));
  }
  return byte_unit(most);
}

std::string name_text(const StrategyPlan& each) {
  std::string name(name_of(each.sharding));
  const Degrees& degrees = each.config.parallelism;
  if (each.refused.empty() && degrees.data_replicate > 1 && each.sharding != Sharding::as_configured) {
    name += fmt::format(" {}x{}", degrees.data_shard, degrees.data_replicate);
  }
  if (each.refused.empty() && each.sharding == Sharding::island) {
    name += fmt::format(" {}", to_string(each.config.shard.residency));
  }
  return name;
}

double tokens_per_rank(const Config& config) {
  return static_cast<double>(config.training.global_batch_size * config.training.sequence_length) /
         config.parallelism.world();
}

using LargestMicrobatches = std::vector<std::optional<LargestMicrobatch>>;

std::string sequences_text(const std::optional<LargestMicrobatch>& largest, std::int64_t LargestMicrobatch::*which) {
  if (!largest) return "-";
  const std::int64_t size = (*largest).*which;
  return size == 0 ? "none" : fmt::format("{}{}", size, size >= most_sequences ? " or more" : "");
}

BenchTable memory_table(const std::vector<StrategyPlan>& plans, const LargestMicrobatches& largest) {
  const ByteUnit unit = largest_unit(plans, [](const RunPlan& plan) { return plan.peak().total(); });
  const auto decimal = [&](std::int64_t bytes) { return unit.decimal_number(bytes, 2); };
  BenchTable table{{fmt::format("{} of the fullest rank", unit.decimal_name()), "state", "full parameters", "rest",
                    "peak", fmt::format("{} with reserve", unit.name()), "largest microbatch", "with full recompute",
                    "verdict"}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const StrategyPlan& each = plans[i];
    if (!each.plan) continue;
    const std::int64_t peak = each.plan->peak().total();
    table.add(name_text(each), decimal(each.state_bytes), decimal(each.full_parameter_bytes),
              decimal(peak - each.state_bytes - each.full_parameter_bytes), decimal(peak),
              unit.number(each.plan->verdict.needed, 2), sequences_text(largest[i], &LargestMicrobatch::plain),
              sequences_text(largest[i], &LargestMicrobatch::recomputed), each.plan->fit_words());
  }
  return table;
}

// Ranks of all plans, in their order. A strategy that does not apply counts as infinitely slow.
std::vector<int> ranks_of(const std::vector<StrategyPlan>& plans, const Certainty& certainty) {
  return ranks_with_ties(plans, certainty, [](const StrategyPlan& each) {
    return each.plan ? each.seconds : std::numeric_limits<double>::infinity();
  });
}

BenchTable time_table(const std::vector<StrategyPlan>& plans, const Certainty& certainty) {
  const std::vector<int> ranks = ranks_of(plans, certainty);
  const ByteUnit unit = largest_unit(plans, [](const RunPlan& plan) { return plan.sent_bytes(); });
  BenchTable table{{"a step", fmt::format("{} sent by a rank", unit.decimal_name()),
                    fmt::format("{} out of a node", unit.decimal_name()), "out of a node", "collectives", "time",
                    "rank", "break-even tokens a rank"}};
  std::vector<StepWaits> waits;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const StrategyPlan& each = plans[i];
    if (!each.plan) continue;
    table.add(name_text(each), unit.decimal_number(each.plan->sent_bytes(), 2),
              unit.decimal_number(each.plan->node_egress_bytes, 2), format_time(each.egress_seconds, false),
              each.collectives, format_time(each.seconds, false), rank_text(ranks, i), decimals(each.break_even, 0));
    waits.push_back(each.plan->time.waits);
  }
  insert_wait_columns(table, 7, waits, false);
  return table;
}

Json strategy_json(const StrategyPlan& each) {
  Json json = {{"strategy", name_of(each.sharding)}, {"words", each.words}};
  if (!each.plan) {
    json["refused"] = each.refused;
    return json;
  }
  const RunPlan& plan = *each.plan;
  json.update({{"data_replicate", each.config.parallelism.data_replicate},
               {"data_shard", each.config.parallelism.data_shard},
               {"residency", plan.residency},
               {"peak_bytes", plan.peak().total()},
               {"state_bytes", each.state_bytes},
               {"full_parameter_bytes", each.full_parameter_bytes},
               {"needed_bytes", plan.verdict.needed},
               {"fit", name_of(plan.verdict.fit)},
               {"verdict", plan.verdict.text()},
               {"sent_bytes", plan.sent_bytes()},
               {"node_egress_bytes", plan.node_egress_bytes},
               {"node_egress_seconds", each.egress_seconds},
               {"collectives", each.collectives},
               {"step_seconds", each.seconds},
               {"break_even_tokens", each.break_even}});
  add_waits(json, plan.time.waits, "_seconds");
  return json;
}

}  // namespace

std::string plan_compare_text(const Config& config, const Hardware& hardware, const ReadWith& read) {
  std::vector<StrategyPlan> plans = compare_strategies(config, hardware);
  reach_families(plans, config, read);
  const Recommendation advice = recommend(plans, hardware);
  const int nodes = (config.parallelism.world() + hardware.node_ranks() - 1) / hardware.node_ranks();
  std::string text = fmt::format(
      "{} ranks on {} node{} of {}, {:.1f} GB/s out of a node; {:.0f} tokens a rank and step, computed in {}\n\n",
      config.parallelism.world(), nodes, nodes == 1 ? "" : "s", hardware.name,
      hardware.node_bytes_per_second.value / 1e9, tokens_per_rank(config), format_time(compute_seconds(plans), false));
  const Certainty certainty = certainty_of(config, hardware);
  text += aligned_text(memory_table(plans, largest_microbatches(plans, hardware))) + "\n" +
          aligned_text(time_table(plans, certainty)) + certainty.text + "\n";
  for (const StrategyPlan& each : plans) {
    if (!each.refused.empty()) text += fmt::format("\n{} does not apply: {}", name_of(each.sharding), each.refused);
  }
  if (std::ranges::any_of(plans, [](const StrategyPlan& each) { return !each.refused.empty(); })) text += "\n";
  text += fmt::format("\nrecommended\n  {}\n", fmt::join(advice.reasons, "\n  "));
  if (advice.chosen) {
    const double chosen = plans[*advice.chosen].seconds;
    const auto tied = std::ranges::count_if(
        plans, [&](const StrategyPlan& each) { return each.fits() && certainty.ties(each.seconds, chosen); });
    if (tied > 1) text += fmt::format("  {} of those that fit are as fast by what the model knows\n", tied);
    const std::vector<std::string>& words = plans[*advice.chosen].words;
    text += words.empty() ? "  it is as configured\n" : fmt::format("  with {}\n", shell_text(words));
    for (const std::string& kept : kept_whole_warnings(plans[*advice.chosen].config))
      text += fmt::format("  {}\n", kept);
  }
  if (!advice.flips.empty()) text += fmt::format("it depends\n  {}\n", fmt::join(advice.flips, "\n  "));
  return text;
}

std::string plan_compare_json(const Config& config, const Hardware& hardware, const ReadWith& read) {
  std::vector<StrategyPlan> plans = compare_strategies(config, hardware);
  reach_families(plans, config, read);
  const Recommendation advice = recommend(plans, hardware);
  Json strategies = Json::array(), recommendation = {{"reasons", advice.reasons}, {"flips", advice.flips}};
  const Certainty certainty = certainty_of(config, hardware);
  const std::vector<int> ranks = ranks_of(plans, certainty);
  const LargestMicrobatches largest = largest_microbatches(plans, hardware);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    strategies.push_back(strategy_json(plans[i]));
    if (plans[i].plan) strategies.back()["rank"] = ranks[i];
    if (!largest[i]) continue;
    strategies.back()["largest_microbatch"] = largest[i]->plain;
    strategies.back()["largest_microbatch_recomputed"] = largest[i]->recomputed;
  }
  if (advice.chosen) {
    recommendation["strategy"] = name_of(plans[*advice.chosen].sharding);
    recommendation["words"] = plans[*advice.chosen].words;
    recommendation["kept_whole"] = kept_whole_warnings(plans[*advice.chosen].config);
  }
  return Json{{"hardware", hardware.name},
              {"node_bytes_per_second", hardware.node_bytes_per_second.value},
              {"compute_seconds", compute_seconds(plans)},
              {"tokens_per_rank", tokens_per_rank(config)},
              {"certainty", certainty.text},
              {"tie_factor", certainty.apart},
              {"strategies", std::move(strategies)},
              {"recommendation", std::move(recommendation)}}
             .dump() +
         "\n";
}

}  // namespace weft
