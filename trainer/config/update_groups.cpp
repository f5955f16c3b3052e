#include "trainer/config/update_groups.h"

namespace weft {

OptimizerConfig inherited_options(const OptimizerConfig& standard, UpdateGroup group) {
  OptimizerConfig options = standard;
  if (group == UpdateGroup::vectors) options.weight_decay = 0.0;
  const bool hidden_matrices = group == UpdateGroup::dense || group == UpdateGroup::experts;
  if (options.rule == UpdateRule::muon && !hidden_matrices) options.rule = UpdateRule::adamw;
  return options;
}

ResolvedGroups resolved_groups(const Config& config) {
  ResolvedGroups groups;
  for (const UpdateGroup group : update_groups) {
    const auto found = config.optimizer_by_group.find(group);
    groups[group] =
        found == config.optimizer_by_group.end() ? inherited_options(config.optimizer, group) : found->second;
  }
  return groups;
}

UpdateGroup update_group_of(const ParameterSpec& parameter) {
  return parameter.global_columns == 1 ? UpdateGroup::vectors : static_cast<UpdateGroup>(parameter.family);
}

int states_of(const ResolvedGroups& groups, const ParameterSpec& parameter) {
  const OptimizerConfig& options = groups[update_group_of(parameter)];
  return states_of(options.rule, options.momentum);
}

}  // namespace weft
