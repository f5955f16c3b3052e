// Assigns blocks to stages by cost. Pure arithmetic: the caller gives the cost of an item, from a model or from
// measurements.
#pragma once

#include <optional>
#include <vector>

namespace weft {

// The demands of a piece of the model on its rank. No number is negative.
struct LayoutItem {
  double cost = 0;              // of a microbatch, in any unit
  double resident_bytes = 0;    // independent of microbatches: parameters, gradients, optimizer state
  double activation_bytes = 0;  // kept for each microbatch between its forward and its backward
  // Least bytes, if parameters and gradients exist in full only while they are needed: all the time, for each
  // microbatch, and while the piece computes.
  double always_bytes = 0, kept_bytes = 0, passing_bytes = 0;
};

struct LayoutItems {
  LayoutItem embedding, head;
  std::vector<LayoutItem> blocks;  // in model order, at least one
};

// The rank of each stage, and the microbatches that ranks keep in the order of the step.
struct ScheduleResidents {
  std::vector<int> rank_of_stage;  // every rank from 0 on has a stage
  // By rank: instants of the step, each as the number of microbatches kept for each of the rank's stages, in ascending
  // order of stages. An instant may be left out if another keeps at least as many for every stage.
  std::vector<std::vector<std::vector<int>>> kept;

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(kept.size()); }
};
// As 1F1B: a stage keeps as many microbatches as there are stages from this one to the last, and at most all.
ScheduleResidents one_stage_each(int stages, int microbatches);

// The number of blocks on each stage. The embedding stands on the first stage, the head on the last.
//
// In the steady state of a schedule, every rank works off one microbatch on all its stages. It takes the time of the
// most loaded rank. So splits are compared by, in this order:
//   1. the cost of the most loaded rank, within 1 % of the least possible;
//   2. the cost of the most expensive stage, which a microbatch waits for while the pipeline fills and drains;
//   3. the cost of the most loaded rank without that 1 %, at this cost of stages;
//   4. the bytes of the fullest rank: its residents, and the activations at its fullest instant.
// Splits that are equal in all this are chosen without preference.
//
// If every rank runs one stage, the result is exact and more is compared. The most expensive stage costs as little as
// possible. So does that of the stages before the last for the blocks they have, of those before these, and so on.
// Among splits that are equal in this, the fullest stage takes as little memory as possible; among those, later stages
// get more. If a rank runs several stages, the result is exact for small models. For large ones it is as good as
// bounded work finds, starting from the best split by stages (chunked_layout.h).
//
// A stage holds at least one block as long as there are enough. The exception is a last stage with the head alone. It
// must be the only way to lower the cost of the most loaded rank or of the most expensive stage. With more stages than
// blocks, a stage holds at most one block, and as few stages as possible hold nothing. One more stage goes to the
// embedding or to the head, by the same preferences, and the next one to the other. Further stages stay empty right
// behind the embedding, where a block would keep the activations of most microbatches.
//
// `memory_limit`: bytes of a rank, compared with the least bytes of its pieces. Among splits with the block counts
// described above, one whose fullest rank exceeds the limit is chosen only if none fits. Then the fullest rank takes as
// little as possible, and the caller reports the excess from the plan of that layout.
//
// `known`: splits of earlier calls (chunked_layout.h), which change no result.
class KnownSplits;
std::vector<int> automatic_layout(const LayoutItems& items, const ScheduleResidents& ranks,
                                  std::optional<double> memory_limit = {}, KnownSplits* known = nullptr);

}  // namespace weft
