#include "trainer/planning/remedy_overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/update_rules.h"
#include "trainer/planning/word.h"

namespace weft::remedy_overrides {
namespace {

bool all_hold(const std::vector<KeyCondition>& conditions, const Config& config) {
  return std::ranges::all_of(conditions, [&](const KeyCondition& condition) { return condition.holds(config); });
}

// Words for a key of [section] that can also be set per family.
RemedyOverrides for_all_families(const Config& config, std::string_view section, std::string_view key,
                                 std::string_view value) {
  RemedyOverrides result{{fmt::format("--{}.{}={}", section, key, value)}};
  for (const Family family : shard_families) {
    if (!all_hold(config_fields::of_family(family, key), config)) continue;
    result.by_family.push_back(fmt::format("--{}.{}.{}={}", section, name_of(family), key, value));
  }
  return result;
}
RemedyOverrides for_all_groups(const Config& config, std::string_view key, std::string_view value) {
  RemedyOverrides result{{fmt::format("--optimizer.{}={}", key, value)}};
  for (const UpdateGroup group : update_groups) {
    if (!all_hold(config_fields::trains_group(group), config)) continue;
    result.by_family.push_back(fmt::format("--optimizer.{}.{}={}", name_of(group), key, value));
  }
  return result;
}

// The policy of the family with most parameters.
const ShardPolicy& main_policy(const Config& config) {
  const Family family = config.model.has(BlockKind::moe) ? Family::experts : Family::dense;
  return config.shard_by_family.at(family);
}

// Words for the degrees that differ from the configuration's.
Overrides degree_words(const Config& config, const Degrees& degrees) {
  Overrides words;
  const auto add = [&](std::string_view name, int Degrees::*degree) {
    if (config.parallelism.*degree == degrees.*degree) return;
    words.push_back(fmt::format("--parallelism.{}={}", name, degrees.*degree));
  };
  add("pipeline", &Degrees::pipeline);
  add("tensor", &Degrees::tensor);
  add("context", &Degrees::context);
  add("data_shard", &Degrees::data_shard);
  add("data_replicate", &Degrees::data_replicate);
  return words;
}

// Degrees with one of them multiplied by 2, 4, ... up to `most`, and the data ranks divided by the same factor. Without
// data ranks to divide: only multiplied by 2, on twice the ranks.
Strengths doubled(const Config& config, int Degrees::*degree, std::int64_t most) {
  constexpr int most_strengths = 4;
  Strengths strengths;
  Degrees degrees = config.parallelism;
  for (int i = 0; i < most_strengths && 2 * degrees.*degree <= most; ++i) {
    degrees.*degree *= 2;
    if (degrees.data_shard % 2 == 0) {
      degrees.data_shard /= 2;
    } else if (degrees.data_replicate % 2 == 0) {
      degrees.data_replicate /= 2;
    } else if (i > 0) {
      break;  // more ranks only once, and only if no data ranks can be divided
    }
    strengths.push_back({degree_words(config, degrees)});
  }
  return strengths;
}

// Deals stages anew, because a layout text for another number of stages would be refused.
void deal_anew(const Config& config, Strengths& strengths) {
  const auto* text = std::get_if<std::string>(&config.pipeline.layout);
  if (text && *text == "auto") return;
  for (RemedyOverrides& strength : strengths) strength.words.emplace_back("--pipeline.layout=auto");
}

}  // namespace

Strengths recompute_selective(const Config& config) {
  if (config.training.recompute != Recompute::none) return {};
  return {{{word("training.recompute", "selective")}}};
}

Strengths recompute_full(const Config& config) {
  if (config.training.recompute == Recompute::full) return {};
  return {{{word("training.recompute", "full")}}};
}

Strengths smaller_microbatch(const Config& config) {
  Strengths strengths;
  const std::int64_t size = config.training.microbatch_size;
  for (std::int64_t smaller = size - 1; smaller >= 1; --smaller) {
    if (size % smaller == 0) strengths.push_back({{word("training.microbatch_size", smaller)}});
  }
  return strengths;
}

Strengths more_tensor(const Config& config) {
  return doubled(config, &Degrees::tensor, std::min<std::int64_t>(8, config.model.num_key_value_heads));
}

Strengths more_context(const Config& config) {
  return doubled(config, &Degrees::context, config.training.sequence_length / 2);
}

Strengths more_pipeline(const Config& config) {
  Strengths strengths = doubled(config, &Degrees::pipeline, std::ssize(config.model.blocks) / config.pipeline.chunks);
  deal_anew(config, strengths);
  return strengths;
}

Strengths more_expert(const Config& config) {
  Strengths strengths;
  if (!config.model.has(BlockKind::moe)) return strengths;
  const Degrees& d = config.parallelism;
  for (std::int64_t expert = 2 * d.expert; expert <= config.model.moe.num_experts; expert *= 2) {
    if (d.stage_ranks() % (expert * d.expert_tensor) != 0) break;
    strengths.push_back({{word("parallelism.expert", expert)}});
  }
  return strengths;
}

Strengths fewer_replicas(const Config& config) {
  Strengths strengths;
  Degrees degrees = config.parallelism;
  while (degrees.data_replicate % 2 == 0) {
    degrees.data_replicate /= 2;
    degrees.data_shard *= 2;
    strengths.push_back({degree_words(config, degrees)});
  }
  return strengths;
}

Strengths leaner_schedule(const Config& config) {
  Strengths strengths;
  if (config.parallelism.pipeline == 1) return strengths;
  // From most microbatches in flight to fewest, each with its chunks per rank.
  struct Choice {
    std::string_view name;
    int chunks;
  };
  constexpr Choice choices[] = {{"gpipe", 1}, {"looped_bfs", 1}, {"interleaved", 2}, {"zb1p", 2},   {"dualpipev", 2},
                                {"zbv", 2},   {"zb_h1", 1},      {"1f1b", 1},        {"v_half", 2}, {"v_min", 2}};
  const auto now = std::ranges::find(choices, config.pipeline.schedule, &Choice::name);
  if (now == std::end(choices)) return strengths;  // a schedule from a file
  for (const Choice* choice = now + 1; choice != std::end(choices); ++choice) {
    if (choice->name != "1f1b" && choice->name != "v_half" && choice->name != "v_min") continue;
    RemedyOverrides strength{{word("pipeline.schedule", choice->name)}};
    if (choice->chunks != config.pipeline.chunks) {
      strength.words.push_back(word("pipeline.chunks", choice->chunks));
      if (config.pipeline.microbatch_group != 0) strength.words.push_back(word("pipeline.microbatch_group", 0));
    }
    strengths.push_back(std::move(strength));
  }
  if (std::ranges::any_of(strengths, [](const RemedyOverrides& strength) { return strength.words.size() > 1; })) {
    deal_anew(config, strengths);
  }
  return strengths;
}

Strengths stronger_strategy(const Config& config) {
  Strengths strengths;
  const ShardStrategy now = main_policy(config).strategy;
  for (const ShardStrategy strategy :
       {ShardStrategy::optimizer, ShardStrategy::shard_grad_op, ShardStrategy::full_shard}) {
    // The enumeration is ordered from full_shard, which shards most, to no_shard.
    if (strategy < now) strengths.push_back(for_all_families(config, "shard", "strategy", name_of(strategy)));
  }
  return strengths;
}

Strengths shorter_residency(const Config& config) {
  const ShardPolicy& policy = main_policy(config);
  if (policy.strategy != ShardStrategy::full_shard) return {};
  Strengths strengths;
  const std::string& now = policy.residency_of(0);
  // A residency that Weft chooses already drops parameters if they would not fit.
  if (now != "reshard_after_use" && now != "stage")
    strengths.push_back(for_all_families(config, "shard", "residency", "reshard_after_use"));
  return strengths;
}

Strengths shorter_lookahead(const Config& config) {
  Strengths strengths;
  for (int lookahead = std::min(main_policy(config).lookahead - 1, 1); lookahead >= 0; --lookahead) {
    strengths.push_back(for_all_families(config, "shard", "lookahead", fmt::format("{}", lookahead)));
  }
  return strengths;
}

Strengths smaller_wrap(const Config& config) {
  const std::string& now = main_policy(config).wrap;
  Strengths strengths;
  if (now != "block" && now != "half_block") strengths.push_back(for_all_families(config, "shard", "wrap", "block"));
  if (now != "half_block") strengths.push_back(for_all_families(config, "shard", "wrap", "half_block"));
  return strengths;
}

Strengths reduce_each_microbatch(const Config& config) {
  const ShardPolicy& policy = main_policy(config);
  if (policy.reduction == "each_microbatch" || policy.accumulate_sharded) return {};
  return {for_all_families(config, "shard", "reduction", "each_microbatch")};
}

Strengths accumulate_shards(const Config& config) {
  const ShardPolicy& policy = main_policy(config);
  if (policy.accumulate_sharded || policy.reduction == "each_microbatch") return {};
  return {for_all_families(config, "shard", "accumulation", "sharded")};
}

Strengths fewer_reduce_inputs(const Config& config) {
  Strengths strengths;
  for (int inputs = std::min(config.reduce_inputs - 1, 1); inputs >= 0; --inputs) {
    strengths.push_back({{word("shard.reduce_inputs", inputs)}});
  }
  return strengths;
}

Strengths narrow_reduction(const Config& config) {
  if (size_of(config.precision_of(Family::dense).reduction) <= 2) return {};
  return {for_all_families(config, "precision", "reduction", "bfloat16")};
}

Strengths narrow_compute(const Config& config) {
  if (size_of(config.precision_of(Family::dense).compute) <= 2) return {};
  return {for_all_families(config, "precision", "compute", "bfloat16")};
}

Strengths narrow_state(const Config& config) {
  if (config.optimizer.state != DType::float32 || states_of(config.optimizer.rule, config.optimizer.momentum) == 0) {
    return {};
  }
  return {for_all_groups(config, "state", "bfloat16")};
}

Strengths narrow_parameters(const Config& config) {
  if (config.precision_of(Family::dense).parameters != DType::float32) return {};
  return {for_all_families(config, "precision", "parameters", "bfloat16")};
}

Strengths leaner_rule(const Config& config) {
  const int states = states_of(config.optimizer.rule, config.optimizer.momentum);
  Strengths strengths;
  if (states > 1) strengths.push_back(for_all_groups(config, "name", "lion"));
  if (states > 0) {
    RemedyOverrides sgd = for_all_groups(config, "name", "sgd");
    const RemedyOverrides still = for_all_groups(config, "momentum", "0.0");
    sgd.words.insert(sgd.words.end(), still.words.begin(), still.words.end());
    sgd.by_family.insert(sgd.by_family.end(), still.by_family.begin(), still.by_family.end());
    strengths.push_back(std::move(sgd));
  }
  return strengths;
}

Strengths rule_of_elements(const Config& config) {
  const auto is_muon = [](const auto& group) { return group.second.rule == UpdateRule::muon; };
  if (std::ranges::none_of(config.optimizer_by_group, is_muon)) return {};
  return {for_all_groups(config, "name", name_of(UpdateRule::adamw))};
}

}  // namespace weft::remedy_overrides
