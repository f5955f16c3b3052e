// Groups of parameters with the same optimizer settings: `[optimizer.<group>]` over `[optimizer]`. Pure functions.
#pragma once

#include <array>
#include <cstddef>

#include "parallel/runtime/parameter.h"
#include "trainer/config/config.h"

namespace weft {

// Settings that a group inherits: the default, with two exceptions. Vectors have no weight decay. If the default is
// muon, groups without matrices between hidden states (all except dense and experts) use adamw.
OptimizerConfig inherited_options(const OptimizerConfig& standard, UpdateGroup group);

struct ResolvedGroups : std::array<OptimizerConfig, update_groups.size()> {
  using array::operator[];
  OptimizerConfig& operator[](UpdateGroup group) { return at(static_cast<std::size_t>(group)); }
  const OptimizerConfig& operator[](UpdateGroup group) const { return at(static_cast<std::size_t>(group)); }
};
ResolvedGroups resolved_groups(const Config& config);

UpdateGroup update_group_of(const ParameterSpec& parameter);
// States kept for each element of the parameter.
int states_of(const ResolvedGroups& groups, const ParameterSpec& parameter);

}  // namespace weft
