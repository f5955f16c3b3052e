// All-gather and reduce-scatter as small integers: a unit of a few rows, sharded over ranks that are threads, goes
// through the communicators that training uses. Nothing that is shown was worked out beside them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct WalkNumbers {
  using Numbers = std::vector<std::int64_t>;  // one a row

  int ranks = 0;
  std::int64_t rows = 0;  // of the unit, a multiple of the ranks
  // By rank.
  std::vector<Numbers> shards = {}, gathered = {};                              // before and after the all_gather
  std::vector<Numbers> gradients = {}, reduced = {};                            // before and after the reduce_scatter
  std::vector<Numbers> all_reduced = {};                                        // of the same gradients
  std::vector<Numbers> composed = {};                                           // `reduced`, all_gathered
  std::int64_t gather_payload = 0, reduce_payload = 0, all_reduce_payload = 0;  // counted, of a rank

  bool operator==(const WalkNumbers&) const = default;
};

// Of the fewest rows from 8 on that the ranks can share. Throws Error (request) for more ranks than can be shown, and
// (failure) should the all-reduce not be what the two others make together.
WalkNumbers walk_numbers(int ranks);
std::string numbers_text(const WalkNumbers& numbers);

}  // namespace weft
