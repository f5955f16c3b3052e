#include "trainer/plan/state_layout.h"

#include <algorithm>

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

bool StateArray::keeps(const ResolvedGroups& groups, const ParameterSpec& parameter) const {
  const OptimizerConfig& options = groups[static_cast<std::size_t>(update_group_of(parameter))];
  return options.state == dtype && states_of(groups, parameter) > state;
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
  for (int state = 0; state < most_states; ++state) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      StateArray array{.state = state, .dtype = dtype};
      const auto keeps = [&](const ParameterSpec& parameter) { return array.keeps(groups, parameter); };
      if (std::ranges::none_of(layout.parameters, keeps)) continue;
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
    }
  }
  return arrays;
}

std::int64_t state_bytes(const ResolvedGroups& groups, const PlannedUnit& unit) {
  std::int64_t bytes = 0;
  for (const StateArray& array : state_arrays(groups, unit)) bytes += array.elements * size_of(array.dtype);
  return bytes;
}

}  // namespace weft
