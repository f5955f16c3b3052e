// Why a run does not fit, and what would make it fit: the moves of moves.h, each planned as a run of its own, with the
// memory and the simulated time that it then has. Nothing here is a rule of thumb: what is said to work has been
// planned, and what is said not to has been planned at its best.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/planning/more_ranks.h"
#include "trainer/planning/moves.h"
#include "trainer/planning/trials.h"

namespace weft {

// The mildest strength that fits, or else the one that needs least.
struct TriedMove {
  Move move;
  Trial trial;
};

// The largest power of two times what is configured that still fits, and the next one.
struct Limit {
  std::string_view what;
  std::int64_t fits = 0, fits_bytes = 0;
  std::optional<std::int64_t> exceeds = {};
  std::int64_t exceeds_bytes = 0;
};

// What holds of activations already, and what there is of them; bytes of the fullest rank.
struct ActivationFacts {
  bool sequence_parallel = false;
  std::int64_t scores = 0;          // of a block, were attention not fused: 5 a s^2 b of its heads and queries
  std::int64_t logits = 0;          // float32, at a time: the cross-entropy goes in chunks
  std::int64_t all_logits = 0;      // float32, were they whole
  std::int64_t dlogits = 0;         // what stays of them
  double block_token = 0.0;         // a token keeps in a block; of the first block
  std::int64_t textbook_token = 0;  // 34 h, of one rank that holds whole layers
};

struct Explanation {
  RunPlan plan;               // under even routing
  std::vector<Limit> limits;  // of what fits; nothing else then
  // Of what does not fit:
  Cause cause = Cause::activations;
  std::int64_t cause_bytes = 0;
  std::int64_t state_bytes = 0;
  bool state_exceeds = false;  // alone, with what is reserved
  ActivationFacts activations;
  std::vector<TriedMove> moves;   // in the order to try
  std::vector<TriedMove> cannot;  // what does not touch the cause, at its best, and does not fit
  // Where the cause is not state: with 64 times the ranks to shard it over, about all that sharding can recover.
  std::optional<Trial> more_sharding;
  // Where no move suffices by itself: the first moves in order that do together, on the same ranks.
  std::vector<Move> combined;
  std::optional<Trial> combination;
  // Where the cause is state, or no combination fits: with the configuration as it is, or with all that can be
  // combined.
  bool asked_for_ranks = false;
  std::optional<MoreRanks> more_ranks;

  // On the same ranks.
  const TriedMove* first_that_fits() const;
};

Explanation explain_run(const ReadWith& read, const Hardware& hardware);

}  // namespace weft
