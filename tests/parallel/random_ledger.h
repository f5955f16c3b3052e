// A ledger's random walk through a list that was not run.
#pragma once

#include "parallel/pipeline/simulation/memory_curve.h"
#include "tests/parallel/random_program.h"

namespace weft {

// Bytes of all buckets at random: what comes and goes beside units, and while an action runs, is the ledger's to say.
inline LedgerWalk random_ledger(Dice& dice, std::size_t actions) {
  const auto draw = [&](BucketBytes more) {
    for (std::int64_t& bytes : more.bytes) bytes += dice.between(0, 1000);
    return more;
  };
  LedgerWalk walk{.before = draw({}), .actions = {}};
  BucketBytes before = walk.before;
  for (std::size_t i = 0; i < actions; ++i) {
    LedgerAction action{.most = {}, .after = draw({})};
    for (std::size_t b = 0; b < bucket_count; ++b) {
      action.most.bytes[b] = std::max(before.bytes[b], action.after.bytes[b]);
    }
    action.most = draw(action.most);
    before = action.after;
    walk.actions.push_back(action);
  }
  return walk;
}

}  // namespace weft
