#include "trainer/rank/checkpoint_rows.h"

#include <algorithm>
#include <map>

#include "trainer/plan/gradient_norm.h"

namespace weft {
namespace {

CheckpointRows held(const OwnedRows& owned, std::string_view state, TensorView values, bool saved) {
  const ParameterSpec& parameter = *owned.parameter;
  require(parameter.columns == parameter.global_columns, "checkpoints hold whole rows");
  return {parameter.name, std::string(state), parameter.global_rows, parameter.global_columns, owned.row_begin, values,
          saved};
}

}  // namespace

std::vector<CheckpointRows> checkpoint_rows(RankStages& stages, const Optimizer& optimizer, const Mesh& mesh,
                                            int rank) {
  std::vector<CheckpointRows> all;
  const Coordinates at = mesh.coordinates(rank);
  const auto units = stages.planned_units();
  // By address of the parameter's rows; the states of these rows have the same key.
  std::map<const void*, bool> saved;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const bool counted = counts_unit(*units[u], mesh, rank);
    for (const OwnedRows& owned : stages.owned_rows(u)) {
      if (owned.rows == 0) continue;
      const bool saves = counted && counts_parameter(*units[u], *owned.parameter, at);
      saved[owned.values.data()] = saves;
      all.push_back(held(owned, {}, owned.values, saves));
    }
  }
  for (const StateRows& kept : optimizer.states()) {
    if (kept.owned.rows == 0) continue;
    all.push_back(held(kept.owned, kept.state, kept.values, saved.at(kept.owned.values.data())));
  }
  return all;
}

std::vector<CheckpointRows> parameter_rows(RankStages& stages) {
  std::vector<CheckpointRows> all;
  for (std::size_t u = 0; u < stages.planned_units().size(); ++u) {
    for (const OwnedRows& owned : stages.owned_rows(u)) {
      if (owned.rows > 0) all.push_back(held(owned, {}, owned.values, /*saved=*/false));
    }
  }
  return all;
}

std::vector<ExpectedTensor> expected_tensors(const Config& config, bool weights_only) {
  std::vector<ExpectedTensor> expected;
  const ResolvedGroups groups = resolved_groups(config);
  for (const ParameterSpec& parameter : model_parameters(config.model)) {
    expected.push_back({parameter.name, {}, parameter.global_rows, parameter.global_columns});
    if (weights_only || !config.training.trains(parameter.family)) continue;
    const UpdateRule rule = groups[update_group_of(parameter)].rule;
    for (int state = 0; state < states_of(groups, parameter); ++state) {
      expected.push_back(
          {parameter.name, std::string(state_name(rule, state)), parameter.global_rows, parameter.global_columns});
    }
  }
  std::ranges::sort(expected);
  return expected;
}

std::map<std::string, std::string> rules_by_group(const Config& config) {
  const ResolvedGroups groups = resolved_groups(config);
  std::map<std::string, std::string> rules;
  for (const UpdateGroup group : update_groups) rules.emplace(name_of(group), name_of(groups[group].rule));
  return rules;
}

std::set<std::string> parameters_of_other_rules(const Config& config, const std::map<std::string, std::string>& rules) {
  const std::map<std::string, std::string> own = rules_by_group(config);
  std::set<std::string> names;
  for (ParameterSpec& parameter : model_parameters(config.model)) {
    const std::string group(name_of(update_group_of(parameter)));
    const auto there = rules.find(group);
    if (there != rules.end() && there->second != own.at(group)) names.insert(std::move(parameter.name));
  }
  return names;
}

std::vector<std::string> router_weights(const ModelConfig& model) {
  std::vector<std::string> names;
  for (ParameterSpec& parameter : model_parameters(model)) {
    // A gate of a shared expert is of the routing too.
    if (parameter.name.ends_with(".router.weight")) names.push_back(std::move(parameter.name));
  }
  return names;
}

}  // namespace weft
