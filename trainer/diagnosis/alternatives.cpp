#include "trainer/diagnosis/alternatives.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/runtime/error.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// About the families that read the key and for which `holds` is true. The keys of those with a value of their own
// written, after "SECTION.KEY" if another one inherits it. Empty if there is no such family.
template <typename Holds>
std::string setting_of(const RunEvidence& evidence, std::string_view section, std::string_view key,
                       const Holds& holds) {
  const std::vector<ConfigKey> schema = config_schema();
  std::vector<std::string> general, own;
  for (const auto& [family, policy] : evidence.config().shard_by_family) {
    // Without wrap "root", which a change of wrap replaces, no unit is of the root family.
    if (!holds(family) || (family == Family::root && key == "wrap")) continue;
    const std::string path = fmt::format("{}.{}.{}", section, name_of(family), key);
    if (missing_for(*std::ranges::find(schema, path, &ConfigKey::path), evidence.config())) continue;
    if (evidence.run.said.contains(path)) {
      own.push_back(path);
    } else {
      general = {fmt::format("{}.{}", section, key)};
    }
  }
  general.insert(general.end(), own.begin(), own.end());
  return fmt::format("{}", fmt::join(general, ", "));
}

}  // namespace

void defer_reductions(ShardPolicy& policy) {
  if (policy.strategy == ShardStrategy::shard_grad_op) policy.strategy = ShardStrategy::optimizer;
  policy.reduction = {ReductionKind::last_microbatch};
  policy.accumulation = Accumulation::unsharded;
}

void keep_parameters(ShardPolicy& policy) {
  policy.residency = {Residency::step};
  policy.residency_by_stage.clear();
}

void compute_in_16_bits(Config& config) {
  const auto narrow = [](PrecisionConfig& precision) {
    if (precision.compute == DType::float32) precision.compute = DType::bfloat16;
  };
  narrow(config.precision);
  for (auto& [family, precision] : config.precision_by_family) narrow(precision);
}

void change_policies(Config& config, const std::function<void(ShardPolicy&)>& change) {
  change(config.shard);
  for (auto& [family, policy] : config.shard_by_family) change(policy);
}

std::optional<Alternative> alternative_of(const RunEvidence& evidence, const Config& config) {
  std::optional<Alternative> found;
  refusal_of([&] { found = {program_figures(ResolvedRun(config))}; });
  if (!found) return found;
  const std::int64_t more = found->bytes_more = found->peak_bytes - evidence.program.peak_bytes;
  const auto headroom = evidence.headroom_bytes();
  if (more <= 0) {
    found->memory = fmt::format("{} bytes less than now", -more);
  } else if (headroom) {
    found->fits = more <= *headroom;
    found->memory = fmt::format("{} bytes more, of {} that are free", more, *headroom);
  } else {
    found->fits = std::nullopt;
    found->memory = fmt::format("{} bytes more; whether they are there is not known: hardware.memory is not set", more);
  }
  return found;
}

std::optional<Alternative> alternative_with(const RunEvidence& evidence,
                                            const std::function<void(ShardPolicy&)>& change) {
  Config config = evidence.config();
  change_policies(config, change);
  return alternative_of(evidence, config);
}

std::string policy_setting(const RunEvidence& evidence, std::string_view key,
                           const std::function<bool(const ShardPolicy&)>& holds) {
  return setting_of(evidence, "shard", key,
                    [&](Family family) { return holds(evidence.config().shard_by_family.at(family)); });
}

std::string float32_setting(const RunEvidence& evidence) {
  return setting_of(evidence, "precision", "compute",
                    [&](Family family) { return evidence.config().precision_of(family).compute == DType::float32; });
}

std::optional<Config> hybrid_of(const Config& config, const RunHardware& hardware) {
  const auto crosses = [&](const Degrees& degrees) {
    const Mesh mesh(degrees);
    return crosses_nodes(mesh, Group::dp_shard, hardware) || crosses_nodes(mesh, Group::dp_shard_cp, hardware);
  };
  if (!crosses(config.parallelism)) return std::nullopt;
  for (int replicas = 2; 2 * replicas <= config.parallelism.data_shard; ++replicas) {
    if (config.parallelism.data_shard % replicas != 0) continue;
    Config hybrid = config;
    hybrid.parallelism.data_shard /= replicas;
    hybrid.parallelism.data_replicate *= replicas;
    if (degree_errors(hybrid.parallelism).empty() && !crosses(hybrid.parallelism)) return hybrid;
  }
  return std::nullopt;
}

std::optional<MemoryCost> predicted_excess(const Alternative& alternative, std::string_view words) {
  if (alternative.bytes_more >= 0) return std::nullopt;
  return MemoryCost{-alternative.bytes_more, Basis::predicted,
                    fmt::format("the peak {} is {} bytes", words, alternative.peak_bytes)};
}

StepCost saved_on_links(const RunEvidence& evidence, const ProgramFigures& alternative) {
  const auto seconds = [&](const ProgramFigures& figures) {
    return link_seconds(figures.exchange, evidence.mesh, evidence.hardware);
  };
  return {seconds(evidence.program) - seconds(alternative), Basis::modelled,
          fmt::format("latencies and bytes on the links of {}, one call after the other", evidence.hardware.name)};
}

EvidenceLine memory_line(const RunEvidence& evidence, std::string_view what, const Alternative& alternative) {
  return {"memory of the fullest rank", fmt::format("{} bytes", evidence.peak_bytes()),
          fmt::format("{} takes {}", what, alternative.memory), metrics_file};
}

}  // namespace weft
