#include "parallel/shard/unit_plan.h"

#include <algorithm>
#include <set>

#include "parallel/runtime/error.h"

namespace weft {
std::string unit_name(const std::string& scope, Family family, int stage) {
  switch (family) {
    case Family::dense:
    case Family::experts:
      return fmt::format("{}.{}", scope, name_of(family));
    case Family::embedding:
    case Family::head:
      return std::string(name_of(family));
    case Family::root:
    case Family::routing:
      return fmt::format("stage.{}.{}", stage, name_of(family));
  }
  return {};
}

std::vector<UnitPlan> form_units(std::span<const ScopedParameters> pieces, int stage) {
  std::vector<UnitPlan> units;
  std::set<std::string> names;
  for (const ScopedParameters& piece : pieces) {
    for (const ParameterSpec& parameter : piece.parameters) {
      if (!names.insert(parameter.name).second) {
        fail("parameter {} is declared twice on stage {}", parameter.name, stage);
      }
      const std::string name = unit_name(piece.scope, parameter.family, stage);
      auto unit = std::find_if(units.begin(), units.end(), [&](const UnitPlan& u) { return u.name == name; });
      if (unit == units.end()) unit = units.insert(units.end(), UnitPlan{name, parameter.family, {}});
      unit->parameters.push_back(parameter);
    }
  }
  std::stable_partition(units.begin(), units.end(), [](const UnitPlan& unit) { return !unit.replicated(); });
  return units;
}

}  // namespace weft
