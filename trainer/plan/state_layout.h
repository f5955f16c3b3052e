// Places of the optimizer's states of a shard unit, in device memory or in host memory. A state that all parameters of
// the unit keep is indexed like the shard, padding included. A state that only some keep (the second moment of norm
// weights beside matrices with one state) takes room for their rows alone. Every rank reserves the room that the shard
// with most of these rows needs. So all ranks of a group hold the same bytes, and the plan knows them without a shard
// index.
#pragma once

#include <cstdint>
#include <span>
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
  bool on_host = false;

  // Whether the array holds state `state` for the rows of a parameter of the unit.
  bool keeps(const ResolvedGroups& groups, const PlannedUnit& unit, const ParameterSpec& parameter) const;
  // The place in the array of `size` elements at `offset` in the shard. `end`: the end of the rows placed before, moved
  // behind these elements. Vectors of 16 bytes begin at the same elements as in the shard.
  std::int64_t place(std::int64_t offset, std::int64_t size, std::int64_t& end) const;
};

// Arrays of a unit that are not empty. Those on the host come in pairs of the same places: state 0, then state 1.
std::vector<StateArray> state_arrays(const ResolvedGroups& groups, const PlannedUnit& unit);

// Chooses the parameters of a stage with states in host memory (PlannedUnit::host_states). Of those stepped by adamw it
// takes the largest first, until their elements are `fraction` of all such parameters' elements on a rank. Of equals
// the one that stands earlier.
void choose_host_states(const ResolvedGroups& groups, double fraction, std::span<PlannedUnit> units);

// States on the host visit the device in chunks of at most this many elements, of both states.
inline constexpr std::int64_t host_chunk_elements = 4 << 20;
// Bytes of the states of a chunk on the device; both begin at a multiple of 64 bytes.
constexpr std::int64_t host_chunk_bytes(std::int64_t elements, DType dtype) {
  constexpr std::int64_t alignment = 64;
  return 2 * ((elements * size_of(dtype) + alignment - 1) / alignment * alignment);
}
inline constexpr int host_chunks_on_device = 2;  // one is updated, the other travels

// Bytes of a unit's states on every rank. `chunk`: of the largest chunk.
struct StateBytes {
  std::int64_t device = 0, host = 0, chunk = 0;
};
StateBytes state_bytes(const ResolvedGroups& groups, const PlannedUnit& unit);

}  // namespace weft
