#include "parallel/shard/fully_shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace weft {

std::string family_warning(const UnitPlan& plan) {
  std::vector<std::string_view> names;
  for (const ParameterSpec& parameter : plan.parameters) {
    if (parameter.family == Family::root) names.push_back(parameter.name);
  }
  if (names.empty()) return {};
  const bool one = names.size() == 1;
  return fmt::format("{} {} of no family that forms units: {} in {}, gathered with all that it holds",
                     fmt::join(names, ", "), one ? "is" : "are", one ? "it lies" : "they lie", plan.name);
}

std::vector<FullyShardedUnit> fully_shard(std::span<const ScopedParameters> pieces, int stage,
                                          const FullyShardPolicy& policy) {
  std::vector<FullyShardedUnit> units;
  for (UnitPlan& plan : form_units(pieces, stage, policy.wrap)) {
    FullyShardedUnit& unit = units.emplace_back();
    unit.frozen = policy.frozen.contains(plan.family);
    if (!plan.replicated()) {
      unit.precision = policy.precision(plan.family);
      unit.layout = lay_out_unit(plan.parameters, policy.shards(plan.family));
    } else if (plan.as_asked) {
      unit.precision.compute = policy.precision(plan.family).compute;
    }
    unit.plan = std::move(plan);
  }
  return units;
}

}  // namespace weft
