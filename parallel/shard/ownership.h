// Who owns what: for every element of every parameter of the model the rank that keeps, steps and saves it. Plain
// values, put together from the layouts of all ranks, so that an optimizer, a checkpoint or a reader can ask without
// knowing how units are laid out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "parallel/shard/unit_layout.h"

namespace weft {

// A box of one parameter, in global rows and columns, and its owner.
struct OwnedRange {
  std::string parameter;
  int rank = 0;
  std::int64_t row_begin = 0, rows = 0;
  std::int64_t column_begin = 0, columns = 0;
  std::string group;      // over which its unit is sharded
  std::string optimizer;  // the rule that steps it
  int replica = 0;        // which of the equal copies of the parameter this is a part of
  bool operator==(const OwnedRange&) const = default;
};

// One rank as the holder of a unit.
struct UnitHolder {
  int rank = 0;
  std::string group;
  std::function<std::string(const ParameterSpec&)> optimizer_of = {};  // empty where nobody asks
  int replica = 0;                                                     // of the unit
  // Parameters that every tensor rank holds whole have a copy on each: copy = replica x tensor_ranks + tensor_rank.
  int tensor_rank = 0, tensor_ranks = 1;
};

// What the holder of shard `shard` of a layout owns. A unit kept whole (one shard) is owned by each of its holders.
std::vector<OwnedRange> owned_ranges(const UnitLayout& layout, std::int64_t shard, const UnitHolder& holder);
// Parameters in no unit are owned whole by every holder, each with a replica of its own.
std::vector<OwnedRange> owned_ranges(std::span<const ParameterSpec> replicated, const UnitHolder& holder);

using OwnerTable = std::vector<OwnedRange>;

// A parameter of the whole model and how many copies of it there should be.
struct GlobalParameter {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  int replicas = 1;
};

enum class OwnershipSeam : std::uint8_t {
  unowned,         // a box that no rank owns
  doubled,         // a box that several ranks own
  outside,         // a box beyond the parameter's shape, a replica too many, or of no parameter of the model
  two_optimizers,  // one parameter stepped by several rules
};
std::string_view name_of(OwnershipSeam seam);

struct OwnershipFault {
  OwnershipSeam seam;
  std::string parameter;
  std::string message;  // one sentence with rows, replica and ranks
};

// Empty when every element of every parameter is owned exactly once in each of its replicas, by one rule.
std::vector<OwnershipFault> find_ownership_faults(std::span<const OwnedRange> table,
                                                  std::span<const GlobalParameter> parameters);

}  // namespace weft
