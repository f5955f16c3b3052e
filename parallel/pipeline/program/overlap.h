// Overlapped pairs: a forward and a backward of different microbatches that a rank runs side by side. The communication
// of one hides behind the computation of the other. In a stage-level list the two are neighbours, forward first, both
// marked. In a lowered list their segments, or parts of segments, alternate, and either half may begin. All these
// actions are marked, and so are the recomputes (R) of the backward. The list holds only the marks; find_overlaps finds
// the pairs.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// Whether a forward and a whole or input-gradient backward may form a pair. Two of one microbatch may not: the backward
// would wait for the forward beside it.
bool may_overlap(const Action& forward, const Action& backward);

// Whether a pair begins at `position`: two neighbouring marked actions that may overlap.
bool pair_begins_at(const std::vector<Action>& actions, std::size_t position);

struct OverlappedPair {
  Action forward, backward;         // the first action of each half in the list
  bool recomputes = false;          // whether the backward has recomputes (R)
  std::size_t first = 0, last = 0;  // positions of its first and last action
};

struct Overlaps {
  std::vector<OverlappedPair> pairs;                // in list order
  std::vector<std::optional<std::size_t>> pair_of;  // by position: index into `pairs`; absent outside of pairs
  std::vector<std::size_t> broken;  // ascending: marked actions in no pair, segments marked unlike the others
};
// A pair lasts as long as marked compute actions of its two (stage, microbatch) follow;
// actions that do not compute may stand between them. Works on stage-level and lowered lists.
Overlaps find_overlaps(const std::vector<Action>& actions);

}  // namespace weft
