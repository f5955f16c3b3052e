// Contradictions between settings of sharding. Each rule holds for every family on its own.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

// A rule about one family's policy, applied only if the model has the family.
using PolicyCheck = Messages (*)(const Config& config, Family family, const ShardPolicy& policy);
ConfigRule policy_rule(Family family, std::vector<std::string> keys, PolicyCheck check) {
  for (std::string& key : keys) {
    if (key.find('.') == std::string::npos) key = fmt::format("shard.{}.{}", name_of(family), key);
  }
  return {std::move(keys), [=](const Config& config) {
            return has_family(config, family) ? check(config, family, config.shard_by_family.at(family)) : Messages{};
          }};
}

// Checks every written residency; messages name the stage if each stage has its own.
template <typename Check>
Messages for_each_residency(const ShardPolicy& policy, Check check) {
  Messages messages;
  const bool by_stage = !policy.residency_by_stage.empty();
  const std::size_t stages = by_stage ? policy.residency_by_stage.size() : 1;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const std::string message = check(policy.residency_of(static_cast<int>(stage)));
    if (!message.empty()) messages.push_back(by_stage ? fmt::format("stage {}: {}", stage, message) : message);
  }
  return messages;
}

Messages residency_faults(const Config&, Family family, const ShardPolicy& policy) {
  const ShardStrategy strategy = policy.strategy;
  const bool once = strategy == ShardStrategy::shard_grad_op || strategy == ShardStrategy::optimizer;
  return for_each_residency(policy, [&](const ResidencyChoice& choice) -> std::string {
    if (once && choice.kind && *choice.kind != Residency::step) {
      return fmt::format(
          "{}: strategy \"{}\" gathers parameters once a step, but residency \"{}\" may drop them before its end: "
          "write "
          "residency \"step\" or \"stage\", or strategy \"full_shard\"",
          name_of(family), name_of(strategy), to_string(choice));
    }
    if (strategy != ShardStrategy::no_shard || choice.kind != Residency::island) return {};
    return fmt::format("{}: strategy \"no_shard\" keeps parameters whole, and residency {} would keep a part of them",
                       name_of(family), to_string(choice));
  });
}

Messages reduction_faults(const Config&, Family family, const ShardPolicy& policy) {
  const std::string_view name = name_of(family);
  const bool in_shards = policy.accumulation == Accumulation::sharded;
  const bool whole_state = policy.strategy == ShardStrategy::optimizer || policy.strategy == ShardStrategy::no_shard;
  Messages messages;
  if (policy.strategy == ShardStrategy::optimizer && policy.reduce_every() != 0) {
    messages.push_back(fmt::format(
        "{}: strategy \"optimizer\" keeps gradients whole until the last microbatch, but reduction is \"{}\": write "
        "reduction \"last_microbatch\", or strategy \"shard_grad_op\"",
        name, to_string(policy.reduction)));
  }
  if (whole_state && in_shards) {
    messages.push_back(fmt::format("{}: strategy \"{}\" keeps gradients whole, but accumulation is \"sharded\"", name,
                                   name_of(policy.strategy)));
  }
  if (!whole_state && in_shards && policy.reduce_every() != 0) {
    messages.push_back(fmt::format(
        "{}: accumulation \"sharded\" adds up shards until the last microbatch, but reduction is \"{}\": write "
        "reduction \"last_microbatch\"",
        name, to_string(policy.reduction)));
  }
  return messages;
}

Messages island_faults(const Config& config, Family family, const ShardPolicy& policy) {
  if (!degree_errors(config.parallelism).empty()) return {};
  const std::int64_t ranks = shard_ranks(config.parallelism, family);
  return for_each_residency(policy, [&](const ResidencyChoice& choice) -> std::string {
    const std::int64_t island = choice.amount;
    if (choice.kind != Residency::island || policy.strategy == ShardStrategy::no_shard) return {};
    if (island > 1 && island < ranks && ranks % island == 0) return {};
    const char* why = island == 1       ? "one rank alone would keep everything"
                      : island == ranks ? "that is the whole group"
                      : island > ranks  ? "that is more than the group has"
                                        : "they do not divide the group";
    std::vector<std::int64_t> divisors;
    for (std::int64_t divisor = 2; divisor < ranks; ++divisor) {
      if (ranks % divisor == 0) divisors.push_back(divisor);
    }
    return fmt::format("{}: residency {} keeps parts with {} of the {} ranks that shard the family, but {}: write {}",
                       name_of(family), island, island, ranks, why,
                       divisors.empty() ? std::string("\"reshard_after_use\", as these have no other divisor")
                                        : fmt::format("{}", fmt::join(divisors, " or ")));
  });
}

Messages stage_count_faults(const Config& config, Family family, const ShardPolicy& policy) {
  const std::size_t stages = policy.residency_by_stage.size();
  const auto expected = static_cast<std::size_t>(config.stages());
  return none_or(stages == 0 || stages == expected, "{}: residency has {} entries for {} pipeline stages",
                 name_of(family), stages, expected);
}

// Families in one unit are gathered, reduced and stepped as one.
ConfigRule root_rule(Family family) {
  const std::string section = fmt::format("shard.{}", name_of(family));
  return {{section + ".wrap", section + ".strategy", section + ".residency", "training.frozen"},
          [=](const Config& config) -> Messages {
            if (config.shard_by_family.at(family).wrap.kind != WrapKind::root) return {};
            const bool counts_fit = std::ranges::all_of(config.shard_by_family, [&](const auto& one) {
              return stage_count_faults(config, one.first, one.second).empty();
            });
            if (!counts_fit) return {};  // told by the rule of that family
            for (int stage = 0; stage < config.stages(); ++stage) {
              const WrapRules rules = wrap_rules(config, stage);
              const std::string &own = rules.merge_key.at(family), &root = rules.merge_key.at(Family::root);
              if (own == root) continue;
              return {
                  fmt::format("{}: wrap \"root\" puts it into the stage's root unit, but what is said of the two "
                              "differs: {} is {}; root is {}",
                              name_of(family), name_of(family), own, root)};
            }
            return {};
          }};
}

// Settings that cannot be combined with residency "auto", for each family by itself.
Messages solved_faults(Family family, const ShardPolicy& policy) {
  Messages messages;
  const auto refuse = [&](const std::string& what) {
    messages.push_back(fmt::format("{}: residency \"auto\" {}", name_of(family), what));
  };
  if (policy.strategy != ShardStrategy::full_shard) {
    refuse(fmt::format("decides what strategy \"{}\" decides too: write strategy \"full_shard\"",
                       name_of(policy.strategy)));
  }
  if (policy.lookahead != 1) refuse("decides when gathers begin: leave lookahead out");
  if (policy.backward_prefetch != BackwardPrefetch::pre || policy.prefetch_within_stage) {
    refuse("decides when gathers begin: leave backward_prefetch and prefetch_within_stage out");
  }
  if (policy.accumulation == Accumulation::sharded) {
    refuse("gives accumulators back when it pays: write accumulation \"unsharded\"");
  }
  if (policy.reduction.kind != ReductionKind::by_strategy && policy.reduction.kind != ReductionKind::last_microbatch) {
    refuse(fmt::format("reduces as often as it pays (reduction \"auto\") or once (\"last_microbatch\"), not \"{}\"",
                       to_string(policy.reduction)));
  }
  return messages;
}

// A timing plan covers the whole step, so all families have it or none.
Messages solved_step_faults(const Config& config) {
  Messages messages;
  std::vector<std::string_view> solved, others;
  std::set<std::string> reductions;
  for (const auto& [family, policy] : config.shard_by_family) {
    if (!has_family(config, family)) continue;
    const std::size_t stages = std::max<std::size_t>(policy.residency_by_stage.size(), 1);
    for (std::size_t stage = 0; stage < stages; ++stage) {
      const bool is = policy.residency_of(static_cast<int>(stage)).kind == Residency::solved;
      auto& list = is ? solved : others;
      if (list.empty() || list.back() != name_of(family)) list.push_back(name_of(family));
    }
    if (solved.empty() || solved.back() != name_of(family)) continue;
    reductions.insert(to_string(policy.reduction));
    for (std::string& message : solved_faults(family, policy)) messages.push_back(std::move(message));
  }
  if (solved.empty()) {
    if (!config.memory_budget) return {};
    return {"memory_budget bounds what residency \"auto\" solves, and no family has it: take memory_budget = \"none\""};
  }
  if (!others.empty()) {
    messages.push_back(fmt::format("residency \"auto\" is solved for a whole step: {} have it, {} do not",
                                   fmt::join(solved, ", "), fmt::join(others, ", ")));
  }
  if (!config.memory_budget) messages.push_back("residency \"auto\" needs a memory_budget, such as \"12 GiB\"");
  if (reductions.size() > 1) messages.push_back("residency \"auto\" has one reduction for all families");
  return messages;
}

Messages replicate_faults(const Config& config) {
  Messages messages;
  if (config.replicate.empty()) return messages;
  const std::vector<ParameterSpec> parameters = model_parameters(config.model);
  for (const std::string& pattern : config.replicate) {
    bool any = false;
    for (const ParameterSpec& parameter : parameters) {
      if (!matches_pattern(pattern, parameter.name)) continue;
      any = true;
      if (is_replicated(parameter.family)) continue;
      if (parameter.global_columns == 1) {
        if (config.parallelism.tensor == 1 || parameter.tensor_replicated) continue;
        messages.push_back(fmt::format(
            "replicate \"{}\" names {}, of which the ranks of tensor {} have a part each: name other vectors only",
            pattern, parameter.name, config.parallelism.tensor));
        break;
      }
      messages.push_back(fmt::format(
          "replicate \"{}\" names {}, a matrix of {} x {}; ranks share its memory and products: only vectors and "
          "weights of routers may be whole on every rank",
          pattern, parameter.name, parameter.global_rows, parameter.global_columns));
      break;
    }
    if (!any) {
      messages.push_back(fmt::format("replicate \"{}\" names no parameter of the model; one is {}", pattern,
                                     parameters[std::min<std::size_t>(1, parameters.size() - 1)].name));
    }
  }
  const auto is_named = [&](const ParameterSpec& parameter) { return matches_any(config.replicate, parameter.name); };
  for (std::size_t i = 1; i < parameters.size(); ++i) {
    const ParameterSpec &one = parameters[i - 1], &other = parameters[i];
    if (!other.stacked || other.global_columns > 1 || is_named(one) == is_named(other)) continue;
    messages.push_back(fmt::format("replicate names {} without {}, and kernels read both as one: name both or neither",
                                   is_named(one) ? one.name : other.name, is_named(one) ? other.name : one.name));
    break;
  }
  return messages;
}

// Freezing what the run does not have would train everything in silence.
Messages frozen_faults(const Config& config) {
  Messages messages;
  for (const Family family : config.training.frozen) {
    for (const KeyCondition& has : config_fields::of_family(family == Family::routing ? Family::experts : family, "")) {
      if (has.holds(config)) continue;
      messages.push_back(fmt::format("training.frozen has {}: a run has it only where {}", name_of(family), has.text));
    }
  }
  return messages;
}

}  // namespace

std::vector<ConfigRule> shard_rules() {
  std::vector<ConfigRule> rules;
  for (const Family family : shard_families) {
    rules.push_back(policy_rule(family, {"strategy", "residency"}, residency_faults));
    rules.push_back(policy_rule(family, {"strategy", "reduction", "accumulation"}, reduction_faults));
    rules.push_back(policy_rule(family,
                                {"residency", "parallelism.data_shard", "parallelism.context", "parallelism.expert",
                                 "parallelism.expert_tensor", "parallelism.tensor", "parallelism.data_replicate"},
                                island_faults));
    rules.push_back(policy_rule(family, {"residency", "parallelism.pipeline", "pipeline.chunks"}, stage_count_faults));
  }
  for (const Family family : {Family::dense, Family::embedding, Family::head}) rules.push_back(root_rule(family));
  rules.push_back({{"shard.memory_budget", "shard.residency", "shard.strategy", "shard.reduction", "shard.lookahead",
                    "shard.accumulation"},
                   solved_step_faults});
  rules.push_back({{"training.frozen", "model.layers", "shard.dense.wrap", "shard.embedding.wrap", "shard.head.wrap"},
                   frozen_faults});
  rules.push_back({{"shard.replicate", "model.layers", "parallelism.tensor"}, replicate_faults});
  rules.push_back({{"training.initial_loss_scale"}, [](const Config& config) {
                     int exponent = 0;
                     const double scale = config.training.initial_loss_scale;
                     return none_or(!uses_float16(config) || std::frexp(scale, &exponent) == 0.5,
                                    "initial_loss_scale {} is not a power of two, which alone scales without rounding",
                                    scale);
                   }});
  return rules;
}

}  // namespace weft
