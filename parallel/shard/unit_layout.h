// The layout of a shard unit's parameters in its flat buffer: pure arithmetic, the same on every rank of the shard
// group.
//
// Every parameter is contiguous and every rank's shard covers whole rows. A gather therefore needs no copy-in and no
// copy-out, and each rank knows exactly which rows of which matrix it owns. Parameters replicated over the tensor group
// come first, then other vectors (one column), then matrices, each kind as declared. Each matrix begins at a multiple
// of its columns. The shard size is a multiple of every matrix's columns. So every cut falls between two rows.
// Consecutive matrices of equal columns are adjacent: they can be read as one taller matrix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/runtime/parameter.h"

namespace weft {

// Rows [row_begin, row_begin + rows) of one parameter (counted within this rank's box), at element `offset`.
struct RowBlock {
  std::size_t parameter = 0;
  std::int64_t row_begin = 0, rows = 0;
  std::int64_t offset = 0;
  bool operator==(const RowBlock&) const = default;
};

struct UnitLayout {
  std::int64_t shards = 1;
  std::int64_t shard_size = 0;            // elements; equal for all shards, trailing shards may hold padding only
  std::vector<ParameterSpec> parameters;  // in the order of the buffer
  std::vector<std::int64_t> offsets;      // element offset of each parameter in the unsharded buffer

  std::int64_t unsharded_size() const { return shards * shard_size; }
  // Elements that are not padding.
  std::int64_t parameter_size() const { return parameter_elements(parameters); }
  std::int64_t padding() const { return unsharded_size() - parameter_size(); }
  // Elements at the front of the buffer with gradients that are partial sums over the tensor group.
  std::int64_t tensor_replicated_size() const;
  // The rows in shard `index`; offsets are within the shard.
  std::vector<RowBlock> rows_of_shard(std::int64_t index) const;

  bool operator==(const UnitLayout&) const = default;
};

// Throws Error (failure) if a parameter has no columns or is declared twice.
UnitLayout lay_out_unit(std::span<const ParameterSpec> parameters, std::int64_t shards);

}  // namespace weft
