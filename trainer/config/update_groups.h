// Which parameters are stepped alike, and how: `[optimizer.<group>]` over `[optimizer]`. Pure functions.
#pragma once

#include <array>

#include "parallel/runtime/parameter.h"
#include "trainer/config/config.h"

namespace weft {

// What a group has where its section is silent: the default, except that vectors are not decayed, and that where the
// default is muon, what is no matrix between hidden states (all but dense and experts) is stepped by adamw.
OptimizerConfig inherited_options(const OptimizerConfig& standard, UpdateGroup group);

using ResolvedGroups = std::array<OptimizerConfig, update_groups.size()>;  // by UpdateGroup
ResolvedGroups resolved_groups(const Config& config);

// Of the matrices of a family.
UpdateGroup matrix_group_of(Family family);
UpdateGroup update_group_of(const ParameterSpec& parameter);
// States kept for each element of the parameter.
int states_of(const ResolvedGroups& groups, const ParameterSpec& parameter);

}  // namespace weft
