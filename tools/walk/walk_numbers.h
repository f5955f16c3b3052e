// All-gather and reduce-scatter on small integers. A unit of a few rows, sharded over ranks that are threads, goes
// through the communicators of training. All numbers shown are results of these communicators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct WalkNumbers {
  using Numbers = std::vector<std::int64_t>;  // one per row

  int ranks = 0;
  std::int64_t rows = 0;  // of the unit, a multiple of the ranks
  // By rank:
  std::vector<Numbers> shards = {}, gathered = {};                              // before and after the all_gather
  std::vector<Numbers> gradients = {}, reduced = {};                            // before and after the reduce_scatter
  std::vector<Numbers> all_reduced = {};                                        // all_reduce of `gradients`
  std::vector<Numbers> composed = {};                                           // all_gather of `reduced`
  std::int64_t gather_payload = 0, reduce_payload = 0, all_reduce_payload = 0;  // counted, per rank

  bool operator==(const WalkNumbers&) const = default;
};

// Uses the least number of rows, 8 or more, that the ranks can share. Throws Error (request) for more ranks than can be
// shown, and Error (failure) if the all-reduce differs from the reduce-scatter and all-gather together.
WalkNumbers walk_numbers(int ranks);
std::string numbers_text(const WalkNumbers& numbers);

}  // namespace weft
