// Overlapped pairs: a forward and a backward of different microbatches that a rank runs side by side, so that the
// communication of one hides behind the computation of the other. In a list they are neighbours, forward first, both
// marked; lowered, their segments alternate, all of them marked, and so are the forwards again that the backward needs.
// Nothing else is written down, so who belongs to whom is found here.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// A forward and a whole or input-gradient backward that may be a pair. Of one microbatch the backward would wait for
// the forward it runs beside.
bool may_overlap(const Action& forward, const Action& backward);

// Whether a pair stands at `position` and behind it: two marked actions that may overlap, nothing between them.
bool pair_begins_at(const std::vector<Action>& actions, std::size_t position);

struct OverlappedPair {
  Action forward, backward;         // as the list has the first of each
  bool recomputes = false;          // whether forwards again are among the segments of the backward
  std::size_t first = 0, last = 0;  // positions of its first and last action
};

struct Overlaps {
  std::vector<OverlappedPair> pairs;                // in list order
  std::vector<std::optional<std::size_t>> pair_of;  // by position: index into `pairs`; of compute actions in a pair
  std::vector<std::size_t> broken;  // ascending: marked actions in no pair, segments that lack the mark of the others
};
// A pair begins with a forward and lasts while marked compute actions of the same two (stage, microbatch) follow, with
// whatever else between them. Works on stage-level and lowered lists alike.
Overlaps find_overlaps(const std::vector<Action>& actions);

}  // namespace weft
