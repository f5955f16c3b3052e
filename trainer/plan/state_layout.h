// Places of the optimizer's states of a shard unit. A state that all parameters of the unit keep is indexed like the
// shard, padding included. A state that only some keep (the second moment of norm weights beside matrices with one
// state) takes room for their rows alone. Every rank reserves the room that the shard with most of these rows needs. So
// all ranks of a group hold the same bytes, and the plan knows them without a shard index.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/update_groups.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// One array of states of a unit.
struct StateArray {
  int state = 0;  // 0 the first of a rule, 1 the second
  DType dtype = DType::float32;
  std::int64_t elements = 0;  // on every rank
  bool as_shard = true;       // whether offsets are those of the shard

  // Whether the array holds state `state` for the rows of a parameter.
  bool keeps(const ResolvedGroups& groups, const ParameterSpec& parameter) const;
  // The place in the array of `size` elements at `offset` in the shard. `end`: the end of the rows placed before, moved
  // behind these elements. Vectors of 16 bytes begin at the same elements as in the shard.
  std::int64_t place(std::int64_t offset, std::int64_t size, std::int64_t& end) const;
};

// Arrays of a unit that are not empty.
std::vector<StateArray> state_arrays(const ResolvedGroups& groups, const PlannedUnit& unit);
std::int64_t state_bytes(const ResolvedGroups& groups, const PlannedUnit& unit);

}  // namespace weft
