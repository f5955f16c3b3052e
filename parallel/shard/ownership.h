// Ownership: for every element of every parameter of the model, the rank that keeps, steps and saves the element. Plain
// values, collected from the layouts of all ranks. An optimizer, a checkpoint or a reader needs no knowledge of unit
// layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "parallel/shard/unit_layout.h"

namespace weft {

// A box of one parameter, in global rows and columns, and its owner.
struct OwnedRange {
  std::string parameter;
  int rank = 0;
  std::int64_t row_begin = 0, rows = 0;
  std::int64_t column_begin = 0, columns = 0;
  std::string group;      // the group over which its unit is sharded
  std::string optimizer;  // the update rule that steps it
  int replica = 0;        // number of the parameter's copy that this is a part of; all copies are equal
  bool operator==(const OwnedRange&) const = default;
};

// One rank as the holder of a unit.
struct UnitHolder {
  int rank = 0;
  std::string group;
  std::function<std::string(const ParameterSpec&)> optimizer_of = {};  // empty if not needed
  int replica = 0;                                                     // of the unit
  // A parameter that every tensor rank holds whole has a copy on each: copy = replica x tensor_ranks + tensor_rank.
  int tensor_rank = 0, tensor_ranks = 1;
};

// Ranges owned by the holder of shard `shard` of a layout. Every holder owns a unit that is kept whole (one shard).
std::vector<OwnedRange> owned_ranges(const UnitLayout& layout, std::int64_t shard, const UnitHolder& holder);
// Parameters outside units are owned whole by every holder; each holder has its own replica.
std::vector<OwnedRange> owned_ranges(std::span<const ParameterSpec> replicated, const UnitHolder& holder);

using OwnerTable = std::vector<OwnedRange>;

// A parameter of the whole model and its expected number of copies.
struct GlobalParameter {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  int replicas = 1;
};

enum class OwnershipSeam : std::uint8_t {
  unowned,         // a box that no rank owns
  doubled,         // a box that several ranks own
  outside,         // a box beyond the parameter's shape, a surplus replica, or an unknown parameter
  two_optimizers,  // one parameter stepped by several rules
};
constexpr auto enum_names(OwnershipSeam) {
  return name_list("unowned", "doubled", "outside", "two_optimizers");
}

struct OwnershipFault {
  OwnershipSeam seam;
  std::string message;  // one sentence with parameter, rows, replica and ranks
};

// Empty if every element of every parameter is owned exactly once in each of its replicas, by one rule.
std::vector<OwnershipFault> find_ownership_faults(std::span<const OwnedRange> table,
                                                  std::span<const GlobalParameter> parameters);

}  // namespace weft
