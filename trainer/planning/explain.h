// Why a run does not fit, and which changes make it fit. Each remedy of remedies.h is planned as a run of its own, with
// its memory and simulated time. There are no rules of thumb. A remedy that is said to work was planned, and a remedy
// that is said not to work was planned at its best. A run that fits under even routing alone is explained under the
// worst.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/planning/planned_variants.h"
#include "trainer/planning/remedies.h"

namespace weft {

// A remedy with its mildest strength that fits; if none fits, with the strength that needs least memory.
struct TriedRemedy {
  Remedy remedy;
  PlannedVariant variant;
};

// The largest power of two times the configured value that still fits, and the next power of two. That one exceeds the
// limit, is refused with a reason, or was not tried.
struct Limit {
  std::string_view what;
  std::int64_t fits = 0, fits_bytes = 0;
  std::optional<std::int64_t> batch = {};  // training.global_batch_size with `fits`, if not the configured one
  std::optional<std::int64_t> exceeds = {};
  std::int64_t exceeds_bytes = 0;
  std::optional<std::int64_t> refused = {};
  std::string reason = {};
};

// Settings that already reduce activations, and sizes of activations; bytes of the fullest rank.
struct ActivationFacts {
  bool sequence_parallel = false;
  std::int64_t scores = 0;          // of a block with unfused attention: 5 a s^2 b of its heads and queries
  std::int64_t logits = 0;          // float32, of one chunk: the cross-entropy is chunked
  std::int64_t all_logits = 0;      // float32, without chunks
  std::int64_t dlogits = 0;         // gradient of the logits that is kept
  double block_token = 0.0;         // bytes kept per token in the first block; 0 if that is recomputed
  std::int64_t textbook_token = 0;  // 34 h, for one rank that holds whole layers
};

struct Explanation {
  RunPlan plan;
  std::vector<Limit> limits;  // for a run that fits under even routing
  // Memory of the run itself and of its variants is judged under `routing`. Under even routing, the variants that fit
  // know their needs under the worst too.
  Routing routing = Routing::even;
  RunOutline judged;  // the run itself
  // For a run that does not fit, or not under the worst routing:
  Cause cause = Cause::activations;
  std::int64_t cause_bytes = 0;
  std::int64_t state_bytes = 0;
  bool state_exceeds = false;    // state alone and reserved bytes exceed the card
  double capacity_factor = 0.0;  // model.moe.capacity_factor
  ActivationFacts activations;
  std::vector<TriedRemedy> remedies;  // in the order to try
  std::vector<TriedRemedy> cannot;    // remedies that do not touch the cause and do not fit, each at its best
  std::vector<TriedRemedy> refused;   // remedies that the configuration cannot take; the variant has the reason
  // If the cause is not state: the run with 64 times the ranks to shard over, about the most that sharding can recover.
  std::optional<PlannedVariant> more_sharding;
  // If no single remedy suffices: the first remedies in order that together fit, on the same ranks.
  std::vector<Remedy> combined;
  std::optional<PlannedVariant> combination;
  // If the cause is state, or no combination fits, the least number of ranks. It is for the configuration as it is or
  // with every remedy that can be combined.
  bool asked_for_ranks = false;
  std::optional<MinimumWorld> minimum_world;

  // Null if none fits. Only remedies on the same ranks count.
  const TriedRemedy* first_that_fits() const;
  // The remedy that fits with the shortest step; of equally long steps, the first.
  const TriedRemedy* fastest_that_fits() const;
  // The first that fits under the worst routing too.
  const TriedRemedy* first_that_always_fits() const;
};

Explanation explain_run(const ReadWith& read, const Hardware& hardware);

}  // namespace weft
