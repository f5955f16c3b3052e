// Where the optimizer's states of a shard unit lie. A state that all parameters of the unit keep is indexed like the
// shard, padding included. One that only some keep (the second moment of norm weights beside matrices with one) takes
// room for those rows alone, as much on every rank as the shard with most of them needs, so that all ranks of a group
// hold the same bytes and the plan knows them without asking which shard a rank has.
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

  // Whether rows of a parameter have their state `state` here.
  bool keeps(const ResolvedGroups& groups, const ParameterSpec& parameter) const;
  // Where `size` elements found at `offset` in the shard go, `end` being where the rows before them ended; moves `end`.
  // Vectors of 16 bytes begin at the same elements as in the shard.
  std::int64_t place(std::int64_t offset, std::int64_t size, std::int64_t& end) const;
};

// Those of a unit that are not empty.
std::vector<StateArray> state_arrays(const ResolvedGroups& groups, const PlannedUnit& unit);
std::int64_t state_bytes(const ResolvedGroups& groups, const PlannedUnit& unit);

}  // namespace weft
