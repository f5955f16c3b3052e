#include "trainer/plan/state_layout.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace weft {
namespace {

// All parameters of a unit that every rank keeps whole form one shard, one after another.
UnitLayout layout_of(const PlannedUnit& unit) {
  if (!unit.plan.replicated()) return unit.layout;
  UnitLayout layout;
  layout.parameters = unit.plan.parameters;
  for (const ParameterSpec& parameter : layout.parameters) {
    layout.offsets.push_back(layout.shard_size);
    layout.shard_size += parameter.size();
  }
  return layout;
}

}  // namespace

bool StateArray::keeps(const ResolvedGroups& groups, const PlannedUnit& unit, const ParameterSpec& parameter) const {
  const OptimizerConfig& options = groups[update_group_of(parameter)];
  return options.state == dtype && states_of(groups, parameter) > state &&
         unit.host_states.contains(parameter.name) == on_host;
}

std::int64_t StateArray::place(std::int64_t offset, std::int64_t size, std::int64_t& end) const {
  if (as_shard) return offset;
  constexpr std::int64_t elements_of_vector = 8;  // elements of 2 bytes
  const std::int64_t behind = (offset - end) % elements_of_vector;
  const std::int64_t begin = end + (behind + elements_of_vector) % elements_of_vector;
  end = begin + size;
  return begin;
}

std::vector<StateArray> state_arrays(const ResolvedGroups& groups, const PlannedUnit& unit) {
  const UnitLayout layout = layout_of(unit);
  std::vector<StateArray> arrays;
  const auto add = [&](StateArray array) {
    const auto keeps = [&](const ParameterSpec& parameter) { return array.keeps(groups, unit, parameter); };
    if (std::ranges::none_of(layout.parameters, keeps)) return;
    array.as_shard = std::ranges::all_of(layout.parameters, keeps);
    array.elements = array.as_shard ? layout.shard_size : 0;
    for (std::int64_t shard = 0; shard < layout.shards && !array.as_shard; ++shard) {
      std::int64_t end = 0;
      for (const RowBlock& block : layout.rows_of_shard(shard)) {
        const ParameterSpec& parameter = layout.parameters[block.parameter];
        if (keeps(parameter)) array.place(block.offset, block.rows * parameter.columns, end);
      }
      array.elements = std::max(array.elements, end);
    }
    arrays.push_back(array);
  };
  for (const bool on_host : {false, true}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (int state = 0; state < most_states; ++state) add({.state = state, .dtype = dtype, .on_host = on_host});
    }
  }
  return arrays;
}

void choose_host_states(const ResolvedGroups& groups, double fraction, std::span<PlannedUnit> units) {
  std::vector<std::pair<PlannedUnit*, const ParameterSpec*>> candidates;
  std::int64_t all = 0, chosen = 0;
  for (PlannedUnit& unit : units) {
    if (unit.frozen) continue;
    for (const ParameterSpec& parameter : unit.plan.parameters) {
      if (groups[update_group_of(parameter)].rule != UpdateRule::adamw) continue;
      candidates.emplace_back(&unit, &parameter);
      all += parameter.size();
    }
  }
  std::ranges::stable_sort(candidates, std::greater(), [](const auto& candidate) { return candidate.second->size(); });
  for (const auto& [unit, parameter] : candidates) {
    if (static_cast<double>(chosen) >= fraction * static_cast<double>(all)) return;
    unit->host_states.insert(parameter->name);
    chosen += parameter->size();
  }
}

StateBytes state_bytes(const ResolvedGroups& groups, const PlannedUnit& unit) {
  StateBytes bytes;
  for (const StateArray& array : state_arrays(groups, unit)) {
    const std::int64_t width = size_of(array.dtype);
    (array.on_host ? bytes.host : bytes.device) += array.elements * width;
    if (!array.on_host) continue;
    bytes.chunk = std::max(bytes.chunk, host_chunk_bytes(std::min(array.elements, host_chunk_elements), array.dtype));
  }
  return bytes;
}

}  // namespace weft
