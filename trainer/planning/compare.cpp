#include "trainer/planning/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/costs/topology.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/planning/remedies.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/chosen_timing.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

// The properties that define a sharding.
struct ShardingChoice {
  Sharding sharding = Sharding::full_shard;
  ShardStrategy strategy = ShardStrategy::full_shard;
  bool hybrid = false, island = false;
};
constexpr std::array choices = {
    ShardingChoice{Sharding::full_shard, ShardStrategy::full_shard},
    ShardingChoice{Sharding::shard_grad_op, ShardStrategy::shard_grad_op},
    ShardingChoice{Sharding::optimizer, ShardStrategy::optimizer},
    ShardingChoice{Sharding::hybrid, ShardStrategy::full_shard, true, false},
    ShardingChoice{Sharding::hybrid_shard_grad_op, ShardStrategy::shard_grad_op, true, false},
    ShardingChoice{Sharding::island, ShardStrategy::full_shard, false, true},
    ShardingChoice{Sharding::no_shard, ShardStrategy::no_shard},
};

// The distribution of a stage's data ranks over nodes. Ranks fill nodes in order, tensor and context ranks first.
struct DataRanks {
  int all = 1;
  int in_node = 1;          // consecutive data ranks inside a node
  std::string broken = {};  // why nodes have unequal numbers of them; empty if equal
};

DataRanks data_ranks_of(const Degrees& degrees, int ranks_per_node) {
  DataRanks data{.all = degrees.data()};
  const int inner = degrees.tensor * degrees.context;
  if (data.all * inner <= ranks_per_node) {
    data.in_node = data.all;
  } else if (ranks_per_node % inner == 0) {
    data.in_node = ranks_per_node / inner;
    if (data.all % data.in_node != 0) {
      const int below = data.all / data.in_node * data.in_node;
      data.broken = fmt::format(
          "{} data ranks do not fill nodes that hold {} of them; nearest: data_replicate x data_shard = {} or {}",
          data.all, data.in_node, below, below + data.in_node);
    }
  } else if (inner % ranks_per_node != 0) {
    data.broken = fmt::format("tensor {} x context {} = {} ranks of one data rank do not fit evenly into nodes of {}",
                              degrees.tensor, degrees.context, inner, ranks_per_node);
  }
  return data;
}

// Why a choice equals another sharding or cannot be set up; empty if neither.
std::string refusal(const Config& config, const ShardingChoice& choice, const DataRanks& data) {
  const Degrees& degrees = config.parallelism;
  const std::int64_t dense = std::int64_t{degrees.data()} * degrees.context;
  const std::int64_t experts = config.model.has(BlockKind::moe) ? degrees.expert_data() : 1;
  if (choice.sharding != Sharding::no_shard && std::max(dense, experts) == 1) {
    return "one data rank has nothing to share: it is no_shard";
  }
  if (!choice.hybrid && !choice.island) return {};
  const std::string_view all_of = choice.strategy == ShardStrategy::full_shard ? "full_shard" : "shard_grad_op";
  if (!data.broken.empty()) return data.broken;
  if (data.in_node == data.all) {
    return fmt::format("all {} data ranks of a stage are in one node: it is {}", data.all, all_of);
  }
  if (data.in_node * degrees.context == 1) {
    return fmt::format("a node holds 1 data rank: it is {}", choice.hybrid ? "no_shard" : "full_shard");
  }
  return {};
}

// Replaces the presets of a strategy, in the default policy and in families with the same values.
void preset(Config& config, const ShardingChoice& choice, int island_ranks, int expert_island_ranks) {
  const ShardPolicy given = config.shard;
  const auto apply = [&](ShardPolicy& policy, int island) {
    if (policy.strategy == given.strategy) policy.strategy = choice.strategy;
    // Sets every key for full_shard, because open keys would be chosen by available memory (chosen_timing.h).
    const bool full = choice.strategy == ShardStrategy::full_shard;
    if (policy.residency == given.residency && policy.residency_by_stage == given.residency_by_stage) {
      policy.residency = island > 1 ? ResidencyChoice{Residency::island, island}
                         : full     ? ResidencyChoice{Residency::reshard_after_use}
                                    : ResidencyChoice{};
      policy.residency_by_stage.clear();
    }
    if (policy.reduction == given.reduction)
      policy.reduction = {full ? ReductionKind::last_microbatch : ReductionKind::by_strategy};
    if (policy.accumulation == given.accumulation) {
      policy.accumulation = full && config.microbatches() > 1 ? Accumulation::sharded : Accumulation::by_strategy;
    }
  };
  for (auto& [family, policy] : config.shard_by_family) {
    apply(policy, family == Family::experts ? expert_island_ranks : island_ranks);
  }
  apply(config.shard, island_ranks);
  // The memory budget belongs to residency "auto" only.
  config.memory_budget = std::nullopt;
}

// The ranks of a group inside a node, as an island size; 0 if they are a single rank or the whole group.
int island_in_node(const Mesh& mesh, Group group, int ranks_per_node) {
  const RankSteps steps = mesh.steps(group);
  const int inside = ranks_per_node / steps.stride;
  return inside > 1 && inside < steps.count ? inside : 0;
}

StrategyPlan derive(const Config& given, const Hardware& hardware, const ShardingChoice& choice) {
  StrategyPlan result{.sharding = choice.sharding, .config = given};
  const DataRanks data = data_ranks_of(given.parallelism, hardware.node_ranks());
  result.refused = refusal(given, choice, data);
  if (!result.refused.empty()) return result;

  Degrees& degrees = result.config.parallelism;
  degrees.data_shard = choice.hybrid ? data.in_node : data.all;
  degrees.data_replicate = data.all / degrees.data_shard;
  int island = 0, expert_island = 0;
  if (choice.island) {
    const Mesh mesh(degrees);
    island = island_in_node(mesh, shard_group(degrees, Family::dense), hardware.node_ranks());
    expert_island =
        given.model.has(BlockKind::moe) ? island_in_node(mesh, Group::edp_shard, hardware.node_ranks()) : island;
  }
  preset(result.config, choice, island, expert_island);
  result.refused = fmt::format("{}", fmt::join(rule_faults(result.config), "; "));

  result.words = changed_words(given, result.config,
                               {"parallelism.data_replicate", "parallelism.data_shard", "shard.strategy",
                                "shard.residency", "shard.reduction", "shard.accumulation", "shard.memory_budget"});
  const ResidencyChoice& experts = result.config.shard_by_family.at(Family::experts).residency;
  if (choice.island && given.model.has(BlockKind::moe) && experts != result.config.shard.residency) {
    result.words.push_back(word("shard.experts.residency", to_string(experts)));
  }
  return result;
}

// Whether both configurations lead to the same step.
bool same_sharding(const Config& one, const Config& other) {
  const auto same = [](const ShardPolicy& a, const ShardPolicy& b) {
    const auto in_shards = [](const ShardPolicy& each) { return each.accumulation == Accumulation::sharded; };
    return a.strategy == b.strategy && a.residency == b.residency && a.residency_by_stage == b.residency_by_stage &&
           a.reduce_every() == b.reduce_every() && in_shards(a) == in_shards(b);
  };
  return one.parallelism == other.parallelism && one.memory_budget == other.memory_budget &&
         std::ranges::all_of(one.shard_by_family, [&](const auto& entry) {
           return same(entry.second, other.shard_by_family.at(entry.first));
         });
}

// Groups in which units are gathered and reduced. Their traffic does not depend on the number of tokens.
bool is_of_units(std::string_view group) {
  constexpr std::array groups = {Group::dp_shard,  Group::dp_replicate,  Group::dp_shard_cp, Group::dp_island,
                                 Group::edp_shard, Group::edp_replicate, Group::edp_island,  Group::edp};
  return std::ranges::any_of(groups, [&](Group each) { return name_of(each) == group; });
}

std::int64_t collectives_of(const RankPlan& rank) {
  std::int64_t calls = 0;
  for (const auto& [key, count] : rank.communication) {
    const bool message = key.op == CollectiveOp::send || key.op == CollectiveOp::receive;
    if (!message && key.op != CollectiveOp::barrier) calls += count.count;
  }
  return calls;
}

void fill(StrategyPlan& result, const Hardware& hardware) {
  result.plan = plan_run(result.config, hardware);
  const RunPlan& plan = *result.plan;
  for (const LiveItem& item : plan.ranks[plan.fullest].live) {
    if (item.what.empty() && is_static(item.bucket)) result.state_bytes += item.bytes;
  }
  result.full_parameter_bytes = plan.peak()[Bucket::unsharded_parameters];
  for (const RankPlan& rank : plan.ranks) result.collectives = std::max(result.collectives, collectives_of(rank));
  double unit_egress = 0.0;
  for (const GroupTraffic& traffic : plan.communication) {
    if (is_of_units(traffic.group)) unit_egress += traffic.node_egress;
  }
  const double node_rate = hardware.node_bytes_per_second.value;
  result.egress_seconds = plan.node_egress_bytes / node_rate;
  result.seconds = plan.time.seconds;
  result.exposed_seconds = plan.time.waits.total();
  const double peak = hardware.flops_per_second(result.config.precision_of(Family::dense).compute).value;
  result.break_even = break_even_tokens(unit_egress, node_rate, static_cast<double>(plan.parameters.active),
                                        hardware.reached.value * peak);
}

Config with_microbatch(Config config, std::int64_t size) {
  config.training.global_batch_size = config.microbatches() * config.parallelism.data() * size;
  config.training.microbatch_size = size;
  return config;
}

// Nothing if the rules refuse the size. A memory budget that is too small for any timing is no refusal: the run needs
// more than there is.
std::optional<Verdict> need_of(const Config& config, const Hardware& hardware, Routing routing) {
  if (!rule_faults(config).empty()) return std::nullopt;
  Verdict verdict{.fit = Fit::exceeds};
  refusal_of([&] { verdict = least_need(config, hardware, routing); });
  return verdict;
}

std::int64_t largest_microbatch(Config config, Recompute recompute, const Hardware& hardware, Routing routing) {
  config.training.recompute = recompute;
  // Tensor ranks divide the tokens of a microbatch, so only multiples of the smallest size are accepted.
  std::int64_t unit = 1;
  while (unit < config.training.microbatch_size && !rule_faults(with_microbatch(config, unit)).empty()) ++unit;
  const auto need = [&](std::int64_t size) { return need_of(with_microbatch(config, size), hardware, routing); };
  const std::optional<Verdict> first = need(unit);
  if (!first || !first->fits()) return 0;
  const SizeScale multiples{.most = static_cast<int>((most_sequences + unit - 1) / unit),
                            .size = [&](int number) { return unit * number; },
                            .number = [&](double size) { return size / static_cast<double>(unit); }};
  return multiples.size(find_size_limit(multiples, {.fits = 1, .fits_bytes = first->needed}, need).fits);
}

}  // namespace

std::vector<StrategyPlan> unplanned_strategies(const Config& config, const Hardware& hardware) {
  std::vector<StrategyPlan> plans;
  for (const ShardingChoice& choice : choices) plans.push_back(derive(config, hardware, choice));
  return plans;
}

void reach_families(std::vector<StrategyPlan>& plans, const Config& given, const ReadWith& read) {
  for (StrategyPlan& each : plans) {
    bool reached = each.words.empty() || !each.refused.empty();
    refusal_of([&] { reached = reached || read(each.words).shard_by_family == each.config.shard_by_family; });
    if (reached) continue;
    std::vector<std::string> keys;
    for (const Family family : shard_families) {
      for (const char* key : {"strategy", "residency", "reduction", "accumulation"}) {
        keys.push_back(fmt::format("shard.{}.{}", name_of(family), key));
      }
    }
    each.words = merged_words(each.words, changed_words(given, each.config, keys));
  }
}

std::vector<StrategyPlan> compare_strategies(const Config& config, const Hardware& hardware) {
  require_full_nodes(config.parallelism.world(), hardware.node_ranks());
  std::vector<StrategyPlan> plans = unplanned_strategies(config, hardware);
  const Config chosen = with_chosen_timing(config, Mesh(config.parallelism));
  const bool known = std::ranges::any_of(
      plans, [&](const StrategyPlan& each) { return each.refused.empty() && same_sharding(each.config, chosen); });
  if (!known) plans.insert(plans.begin(), StrategyPlan{.sharding = Sharding::as_configured, .config = config});
  for (StrategyPlan& each : plans) {
    if (each.refused.empty()) fill(each, hardware);
  }
  return plans;
}

double compute_seconds(std::span<const StrategyPlan> plans) {
  for (const StrategyPlan& each : plans) {
    if (!each.plan) continue;
    const auto part = std::ranges::find(each.plan->mean, "computation", &StepPart::what);
    if (part != each.plan->mean.end()) return part->seconds;
  }
  return 0.0;
}

double break_even_tokens(double egress_bytes, double node_bytes_per_second, double parameters,
                         double flops_per_second) {
  return egress_bytes / node_bytes_per_second * flops_per_second / (6.0 * parameters);
}

std::vector<std::optional<LargestMicrobatch>> largest_microbatches(std::span<const StrategyPlan> plans,
                                                                   const Hardware& hardware) {
  std::vector<std::optional<LargestMicrobatch>> largest(plans.size());
  if (!hardware.memory) return largest;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].refused.empty()) largest[i] = LargestMicrobatch{};
  }
  spread_work(2 * plans.size(), dry_threads(), [&](std::size_t task) {
    auto& found = largest[task / 2];
    if (!found) return;
    const bool plain = task % 2 == 0;
    const StrategyPlan& each = plans[task / 2];
    (plain ? found->plain : found->recomputed) =
        largest_microbatch(each.config, plain ? Recompute::none : Recompute::full, hardware,
                           each.plan ? each.plan->judging() : Routing::even);
  });
  return largest;
}

}  // namespace weft
