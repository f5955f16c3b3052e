#include "trainer/plan/unit_policy.h"

#include "parallel/runtime/error.h"
#include "trainer/config/update_groups.h"

namespace weft {
namespace {

void apply_residency(const ResidencyChoice& choice, const ShardPolicy& shard, UnitPolicy& policy) {
  policy.residency = *choice.kind;
  if (!shard.why.empty()) {
    policy.reason = shard.why;
    return;
  }
  switch (policy.residency) {
    case Residency::window:
      policy.window_stages = choice.amount;
      policy.reason = fmt::format("kept while its stage is one of the rank's next {}, as configured", choice.amount);
      return;
    case Residency::solved:
      policy.reason = "when it is gathered, dropped and reduced is solved for the whole step under shard.memory_budget";
      return;
    case Residency::island:
      policy.island_ranks = choice.amount;
      policy.reason = fmt::format("after a forward {} neighbours keep it among them, as configured", choice.amount);
      return;
    default:
      policy.reason = fmt::format("residency \"{}\" as configured", name_of(policy.residency));
  }
}

// The wrap of a family, a bucket in bytes.
WrapPolicy wrap_of(const Config& config, Family family, const ShardPolicy& policy, std::int64_t element_bytes) {
  if (policy.wrap.kind != WrapKind::buckets) return policy.wrap;
  const std::int64_t replicas = family == Family::experts ? Mesh(config.parallelism).expert_replicas()
                                                          : std::int64_t{config.parallelism.data_replicate};
  return {WrapKind::minimum_bytes,
          bucket_parameters(shard_ranks(config.parallelism, family) * replicas) * element_bytes};
}

}  // namespace

bool is_solved(const Config& config) {
  const auto dense = config.shard_by_family.find(Family::dense);
  return dense != config.shard_by_family.end() && dense->second.residency_of(0).kind == Residency::solved;
}

bool has_family(const Config& config, Family family) {
  return family != Family::experts || config.model.has(BlockKind::moe);
}

std::int64_t shard_ranks(const Degrees& degrees, Family family) {
  if (family == Family::experts) return degrees.expert_data() / Mesh(degrees).expert_replicas();
  return std::int64_t{degrees.data_shard} * degrees.context;
}

bool leaves_residency_open(const ShardPolicy& policy) {
  return policy.strategy == ShardStrategy::full_shard && !policy.residency.kind && policy.residency_by_stage.empty();
}

bool leaves_reduction_open(const ShardPolicy& policy) {
  return policy.strategy == ShardStrategy::full_shard && policy.reduction.kind == ReductionKind::by_strategy &&
         policy.accumulation == Accumulation::by_strategy && policy.residency_of(0).kind != Residency::solved;
}

bool has_copies(const Config& config, Family family) {
  const bool predicts = config.model.mtp_depth > 0, tied = config.model.tie_word_embeddings;
  if (config.stages() == 1) return false;
  return (family == Family::embedding && (predicts || tied)) || (family == Family::head && predicts && !tied);
}

bool may_add_up_in_shards(const Config& config, Family family) {
  return !has_copies(config, family) || config.precision_of(family).reduction == DType::float32;
}

PromisedResidency promised_residency(const ShardPolicy& policy, Family family) {
  const bool in_root = family != Family::experts && policy.wrap.kind == WrapKind::root;
  if (family == Family::root || in_root) {
    return {Residency::keep_after_forward, "kept from forward to backward, as the root unit of a stage is"};
  }
  return {Residency::reshard_after_use,
          fmt::format("dropped after each use: full_shard has whole parameters of the units in use and of the next {} "
                      "alone, unless memory is known to be free (hardware.name, hardware.memory)",
                      policy.lookahead)};
}

UnitPolicy replicated_policy(const Config& config, Family family) {
  UnitPolicy policy;
  policy.residency = Residency::step;
  policy.reduce_every = config.shard.reduce_every();
  policy.reason =
      family == Family::helpers
          ? "replicated in float32: moved alike on every rank by the counts of a step, compared bit for bit"
      : family == Family::routing
          ? "replicated in float32: tiny, on the routing path; all-reduced over every rank that saw other tokens"
          : "replicated in float32, as [shard] asks; all-reduced over every rank that saw other tokens";
  return policy;
}

UnitPolicy resolve_policy(const Config& config, Family family, int stage) {
  if (is_replicated(family)) return replicated_policy(config, family);
  const auto found = config.shard_by_family.find(family);
  if (found == config.shard_by_family.end()) {
    fail_request("family {} has no policy: give it a section [shard.{}]", name_of(family), name_of(family));
  }
  const ShardPolicy& shard = found->second;
  const bool whole = shard.strategy == ShardStrategy::no_shard || shard_ranks(config.parallelism, family) == 1;
  UnitPolicy policy;
  policy.lookahead = shard.lookahead;
  policy.backward_prefetch = shard.backward_prefetch;
  policy.within_stage = shard.prefetch_within_stage;
  policy.reduce_every = shard.reduce_every();
  const bool promised =
      leaves_reduction_open(shard) && config.microbatches() > 1 && may_add_up_in_shards(config, family);
  policy.accumulate_sharded = (shard.accumulation == Accumulation::sharded || promised) && !whole;
  const ResidencyChoice& choice = shard.residency_of(stage);
  // The timing plan chooses how often to reduce, unless the configuration asks for one reduction.
  if (choice.kind == Residency::solved && shard.reduction.kind == ReductionKind::by_strategy) policy.reduce_every = 1;
  if (choice.kind) {
    apply_residency(choice, shard, policy);
  } else if (shard.strategy == ShardStrategy::shard_grad_op || shard.strategy == ShardStrategy::optimizer) {
    policy.residency = Residency::step;
    policy.reason = fmt::format("gathered once a step, as strategy {} says", name_of(shard.strategy));
  } else {
    PromisedResidency open = promised_residency(shard, family);
    policy.residency = open.residency;
    policy.reason = std::move(open.why);
  }
  if (shard.strategy == ShardStrategy::no_shard) policy.reason = "not sharded, as configured";
  return policy;
}

WrapRules wrap_rules(const Config& config, int stage) {
  WrapRules rules;
  rules.replicate = config.replicate;
  rules.replicate_below = config.replicate_below;
  rules.element_bytes = size_of(config.precision_of(Family::dense).compute);
  const ResolvedGroups groups = resolved_groups(config);
  for (const auto& [family, policy] : config.shard_by_family) {
    const UnitPrecision precision = unit_precision(config, family);
    // The root family has no matrices of its own. It is compared as dense, whose matrices its unit may take in.
    const auto group = static_cast<UpdateGroup>(family == Family::root ? Family::dense : family);
    rules.by_family[family] = wrap_of(config, family, policy, rules.element_bytes);
    rules.merge_key[family] = fmt::format(
        "strategy {}, residency {}, lookahead {}{}{}, reduction {}, accumulation {}, {} / {} / {}, {} by {}",
        name_of(policy.strategy), to_string(policy.residency_of(stage)), policy.lookahead,
        policy.backward_prefetch == BackwardPrefetch::pre
            ? ""
            : fmt::format(", backward_prefetch {}", name_of(policy.backward_prefetch)),
        policy.prefetch_within_stage ? ", within its stage" : "", to_string(policy.reduction),
        name_of(policy.accumulation), name_of(precision.stored), name_of(precision.compute),
        name_of(precision.reduction), config.training.frozen.contains(family) ? "frozen, not stepped" : "stepped",
        name_of(groups[group].rule));
  }
  return rules;
}

std::vector<std::string> shard_warnings(const Config& config) {
  WrapPolicies policies;
  for (const auto& [family, policy] : config.shard_by_family) {
    if (has_family(config, family)) policies[family] = policy.wrap;
  }
  return wrap_warnings(policies);
}

Group shard_group(const Degrees& degrees, Family family) {
  if (family == Family::experts) return Group::edp_shard;
  return degrees.context > 1 ? Group::dp_shard_cp : Group::dp_shard;
}

std::set<Island> islands_of(const Config& config) {
  std::set<Island> islands;
  for (const auto& [family, policy] : config.shard_by_family) {
    if (!has_family(config, family)) continue;
    for (int stage = 0; stage < config.stages(); ++stage) {
      const ResidencyChoice& choice = policy.residency_of(stage);
      if (choice.kind != Residency::island) continue;
      islands.insert({shard_group(config.parallelism, family), choice.amount});
    }
  }
  return islands;
}

UnitPrecision unit_precision(const Config& config, Family family) {
  const PrecisionConfig& precision = config.precision_of(family);
  return {precision.parameters, precision.compute, precision.reduction};
}

}  // namespace weft
