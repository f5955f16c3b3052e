#include "tools/plan/plan_reports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "parallel/runtime/quantities.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config.h"
#include "trainer/planning/published.h"

namespace weft {
namespace {

// Number of live items shown as text; JSON has all of them.
constexpr std::size_t shown_live = 12;

// Of the tables of a plan: that of the fullest rank.
ByteUnit memory_unit(const RunPlan& plan) {
  return byte_unit(plan.peak().total());
}

// Of the traffic of a step.
ByteUnit traffic_unit(const RunPlan& plan) {
  double most = static_cast<double>(plan.sent_bytes());
  for (const GroupTraffic& traffic : plan.communication) most = std::max(most, traffic.bytes);
  return byte_unit(static_cast<std::int64_t>(std::min(most, 0x1p62)));
}

std::vector<Bucket> buckets_in_use(const RunPlan& plan) {
  std::vector<Bucket> used;
  std::ranges::copy_if(all_values<Bucket>, std::back_inserter(used), [&](Bucket bucket) {
    return std::ranges::any_of(plan.ranks, [&](const RankPlan& rank) { return rank.peak[bucket] > 0; });
  });
  return used;
}

std::string ranks_text(const RankClass& ranks) {
  return ranks.ranks == 1 ? fmt::format("{}", ranks.first) : fmt::format("{} (x {})", ranks.first, ranks.ranks);
}

// "products 1.2 s, gathers 3 ms".
std::string parts_text(const std::vector<StepPart>& parts) {
  std::vector<std::string> texts;
  for (const StepPart& part : parts) texts.push_back(fmt::format("{} {}", part.what, format_time(part.seconds, false)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// The seconds for which computation waits, of those of the collectives inside it.
std::string exposed_text(const RunPlan& plan) {
  std::vector<std::string> texts;
  for (const StepPart& part : plan.inside) {
    const auto found = std::ranges::find(plan.exposed, part.what, &StepPart::what);
    const double exposed = found == plan.exposed.end() ? 0.0 : found->seconds;
    texts.push_back(fmt::format("{} {}", part.what, format_time(exposed, false)));
    if (exposed < part.seconds) texts.back() += fmt::format(" of {}", format_time(part.seconds, false));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

Json parts_json(const std::vector<StepPart>& parts) {
  Json json = Json::object();
  for (const StepPart& part : parts) json[part.what] = part.seconds;
  return json;
}

BenchTable memory_table(const RunPlan& plan) {
  BenchTable table{{"rank"}};
  const auto number = [unit = memory_unit(plan)](std::int64_t bytes) { return unit.number(bytes, 3); };
  const std::vector<Bucket> used = buckets_in_use(plan);
  for (const Bucket bucket : used) table.header.push_back(bucket_words(bucket));
  table.header.insert(table.header.end(), {"runtime reserve", "sum"});
  if (plan.worst_bytes()) table.header.push_back("sum, worst routing");
  table.header.push_back("peak stands at");
  for (const RankPlan& rank : plan.ranks) {
    auto& row = table.add(ranks_text(rank.ranks));
    for (const Bucket bucket : used) row.push_back(number(rank.peak[bucket]));
    row.push_back(number(plan.verdict.reserved));
    row.push_back(number(rank.peak.total() + plan.verdict.reserved));
    if (rank.worst_bytes) row.push_back(number(*rank.worst_bytes + plan.verdict.reserved));
    row.push_back(rank.peak_action);
  }
  return table;
}

BenchTable live_table(const RankPlan& rank, ByteUnit unit) {
  BenchTable table{{"what", "microbatch", "bucket", std::string(unit.name())}};
  for (const LiveItem& item : rank.live) {
    if (table.rows.size() == shown_live) break;
    table.add(item.what.empty() ? "kept by the run" : item.what,
              item.microbatch ? fmt::format("{}", *item.microbatch) : "", name_of(item.bucket),
              unit.number(item.bytes, 3));
  }
  return table;
}

// Of the fullest rank.
BenchTable units_table(const RunPlan& plan) {
  const RankPlan& rank = plan.ranks[plan.fullest];
  const LiveIntegral& integral = rank.integral;
  const ByteSeconds& timed = plan.byte_seconds[static_cast<std::size_t>(rank.ranks.at.pp)];
  const ByteUnit unit = memory_unit(plan);
  BenchTable table{{"what", fmt::format("peak {}", unit.name()), fmt::format("{} x computing actions", unit.name()),
                    fmt::format("{} x seconds", unit.name())}};
  for (const Bucket bucket : unit_buckets) {
    table.add(bucket_words(bucket), unit.number(integral.peak[bucket], 3), unit.number(integral.byte_steps[bucket], 3),
              unit.number(timed[bucket], 3));
  }
  return table;
}

BenchTable traffic_table(const RunPlan& plan) {
  const ByteUnit unit = traffic_unit(plan);
  BenchTable table{{"group", "operation", "calls"}};
  for (const char* where : {"of all ranks", "sent by a rank", "out of a node"}) {
    table.header.push_back(fmt::format("{} {}", unit.name(), where));
  }
  for (const GroupTraffic& traffic : plan.communication) {
    if (traffic.op == CollectiveOp::receive) continue;
    table.add(traffic.group, name_of(traffic.op), traffic.count, unit.number(traffic.bytes, 3),
              unit.number(traffic.sent, 3), unit.number(traffic.node_egress, 3));
  }
  table.add("all", "", "", "", unit.number(plan.sent_bytes(), 3), unit.number(plan.node_egress_bytes, 3));
  return table;
}

// An integer where one holds it.
Json whole_number(double value) {
  return value < 0x1p63 ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json rank_json(const RunPlan& plan, const RankPlan& rank) {
  const auto live = [](const LiveItem& item) {
    Json entry = {{"what", item.what}, {"bucket", name_of(item.bucket)}, {"bytes", item.bytes}};
    if (item.microbatch) entry["microbatch"] = *item.microbatch;
    return entry;
  };
  Json json = {{"rank", rank.ranks.first},
               {"ranks", rank.ranks.ranks},
               {"peak_bytes", rank.peak.total()},
               {"peak_action", rank.peak_action},
               {"buckets", buckets_json(rank.peak)},
               {"runtime_reserve", plan.verdict.reserved},
               {"host_state_bytes", rank.host[Bucket::optimizer_state]},
               {"host_activation_bytes", rank.host[Bucket::activations]},
               {"live", json_list(rank.live, live)}};
  json["unit_peak_bytes"] = unit_bytes_json(rank.integral.peak);
  json["byte_steps"] = unit_bytes_json(rank.integral.byte_steps);
  json["byte_seconds"] = unit_bytes_json(plan.byte_seconds[static_cast<std::size_t>(rank.ranks.at.pp)]);
  if (rank.worst_bytes) json["worst_peak_bytes"] = *rank.worst_bytes;
  return json;
}

Json traffic_json(const GroupTraffic& traffic) {
  return {{"group", traffic.group},         {"operation", name_of(traffic.op)},
          {"count", traffic.count},         {"bytes", whole_number(traffic.bytes)},
          {"sent_by_a_rank", traffic.sent}, {"out_of_a_node", traffic.node_egress}};
}

}  // namespace

std::string plan_routing_text(std::string_view heading, const RunPlan& plan) {
  const auto worst = plan.worst_bytes();
  if (!worst) return {};
  return fmt::format("{}{}: at most {}, whatever experts the tokens choose\n", heading, plan.fit_words(),
                     plan.verdict.unit().text(*worst + plan.verdict.reserved));
}

std::string plan_text(const Config& config, const Hardware& hardware, const RunPlan& plan) {
  const Degrees& d = config.parallelism;
  std::string text = fmt::format("model      {} parameters, {} active per token; {:.3f} GFLOP a token in {} of them\n",
                                 grouped_digits(plan.parameters.total), grouped_digits(plan.parameters.active),
                                 plan.flops_per_token / 1e9, config.training.sequence_length);
  text += fmt::format(
      "mesh       pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {}; experts edp {} x ep {} x etp {}\n", d.pipeline,
      d.data_replicate, d.data_shard, d.context, d.tensor, d.expert_data(), d.expert, d.expert_tensor);
  if (d.expert_relay() > 1) {
    text += fmt::format("           tokens reach experts by {} over {} groups of ranks\n", name_of(d.expert_dispatch),
                        d.expert_relay());
  }
  text += fmt::format("hardware   {}: {}; {} ranks on {} node{}\n", hardware.name, hardware.summary, plan.world,
                      plan.nodes, plan.nodes == 1 ? "" : "s");
  text += fmt::format("step       {}, {} microbatches a rank, layout {}, residency {}, recompute {}\n", plan.schedule,
                      plan.microbatches, plan.layout, plan.residency, name_of(config.training.recompute));
  text += fmt::format(
      "time       {} simulated, bubble {:.1f} %, exposed gathers {}, exposed reductions {}{}{}, MFU {:.1f} %\n",
      format_time(plan.time.seconds, false), 100.0 * plan.time.bubble, format_time(plan.time.waits.gathers, false),
      format_time(plan.time.waits.reductions, false),
      plan.time.waits.rows > 0.0 ? ", waits for rows " + format_time(plan.time.waits.rows, false) : "",
      plan.time.waits.host > 0.0 ? ", waits for host memory " + format_time(plan.time.waits.host, false) : "",
      100.0 * plan.time.mfu);
  if (!plan.inside.empty()) {
    text += fmt::format("           exposed inside computation: {}\n", exposed_text(plan));
  }
  text += fmt::format("           critical path: {}\n", parts_text(plan.path));
  text += fmt::format(
      "           {:.3e} FLOP a step; products reach {:.0f} % of the peak (weft hardware has the sources)\n",
      plan.step_flops, 100.0 * hardware.reached.value);
  text += fmt::format(
      "links      {} {} out of the node that most leaves, at {:.0f} GB/s {}, {}\n",
      traffic_unit(plan).number(plan.node_egress_bytes, 3), traffic_unit(plan).name(),
      hardware.node_bytes_per_second.value / 1e9,
      format_time(plan.node_egress_bytes / hardware.node_bytes_per_second.value, false),
      config.pipeline.has_cost_table() ? "of which the costs that are given know nothing" : "which no step beats");
  text += fmt::format("certainty  {}\n", certainty_of(config, hardware).text);
  text += fmt::format("verdict    {}\n", plan.verdict.text());
  text += plan_routing_text("routing    ", plan);
  if (forces_balance(config.model)) text += fmt::format("routing    {}\n", forced_balance_text);
  const ByteUnit host = byte_unit(std::max({plan.host_bytes, plan.saved_bytes, plan.host.total()}));
  text += fmt::format("host       {} {} pinned for checkpoints, of which the fullest rank saves {} {}{}\n",
                      host.number(plan.host_bytes, 3), host.name(), host.number(plan.saved_bytes, 3), host.name(),
                      plan.host_bytes < plan.saved_bytes
                          ? ": the update after a save waits for the disk (checkpoint.host_memory)"
                          : "");
  for (const auto& [bucket, what] :
       {std::pair(Bucket::optimizer_state, "optimizer states"), std::pair(Bucket::activations, "activations")}) {
    if (plan.host[bucket] == 0) continue;
    text +=
        fmt::format("           {} {} for {} of the rank with most, which cross at {:.0f} GB/s\n",
                    host.number(plan.host[bucket], 3), host.name(), what, hardware.host_bytes_per_second.value / 1e9);
  }
  const ByteUnit unit = memory_unit(plan);
  text += fmt::format("\nmemory at the peak, {}, by rank (x ranks alike); routed tokens dealt evenly\n{}", unit.name(),
                      aligned_text(memory_table(plan)));
  const RankPlan& fullest = plan.ranks[plan.fullest];
  text += fmt::format(
      "\nlive on rank {} at {}, largest first{}\n{}", fullest.ranks.first, fullest.peak_action,
      fullest.live.size() > shown_live ? fmt::format(" ({} of {})", shown_live, fullest.live.size()) : std::string(),
      aligned_text(live_table(fullest, unit)));
  text += fmt::format("\nunits on rank {} over the step\n{}", fullest.ranks.first, aligned_text(units_table(plan)));
  text += fmt::format("\ncommunication of a step\n{}", aligned_text(traffic_table(plan)));
  return text;
}

std::string plan_json(const Config& config, const Hardware& hardware, const RunPlan& plan) {
  const auto rank_of = [&](const RankPlan& rank) { return rank_json(plan, rank); };
  const Verdict& verdict = plan.verdict;
  const Certainty certainty = certainty_of(config, hardware);
  Json json = {{"hardware", hardware.name},
               {"certainty", certainty.text},
               {"forced_balance", forces_balance(config.model)},
               {"tie_factor", certainty.apart},
               {"world", plan.world},
               {"nodes", plan.nodes},
               {"layout", plan.layout},
               {"schedule", plan.schedule},
               {"microbatches", plan.microbatches},
               {"ranks", json_list(plan.ranks, rank_of)},
               {"communication", json_list(plan.communication, traffic_json)},
               {"step_seconds", plan.time.seconds},
               {"bubble", plan.time.bubble},
               {"exposed_collectives_seconds", parts_json(plan.exposed)},
               {"collectives_seconds", parts_json(plan.inside)},
               {"critical_path_seconds", parts_json(plan.path)},
               {"mean_rank_seconds", parts_json(plan.mean)},
               {"mfu", plan.time.mfu},
               {"flops_per_token", plan.flops_per_token},
               {"step_flops", plan.step_flops},
               {"parameters_total", plan.parameters.total},
               {"parameters_active", plan.parameters.active},
               {"verdict", name_of(verdict.fit)},
               {"verdict_text", verdict.text()},
               {"needed_bytes", verdict.needed},
               {"reserved_bytes", verdict.reserved},
               {"memory_bytes", verdict.memory},
               {"deciding_bucket", name_of(verdict.deciding)},
               {"saved_bytes", plan.saved_bytes},
               {"host_bytes", plan.host_bytes},
               {"host_state_bytes", plan.host[Bucket::optimizer_state]},
               {"host_activation_bytes", plan.host[Bucket::activations]}};
  add_waits(json, plan.time.waits, "_seconds");
  if (const auto worst = plan.worst_bytes()) {
    json["worst_needed_bytes"] = *worst + verdict.reserved;
    json["worst_verdict"] = name_of(plan.worst_fit());
  }
  return json.dump() + "\n";
}

}  // namespace weft
