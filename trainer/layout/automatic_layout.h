// Blocks dealt to stages by cost. Pure arithmetic: what an item costs is said by whoever asks, from a model or from
// measurements.
#pragma once

#include <optional>
#include <vector>

namespace weft {

// What a piece of the model asks of the rank that holds it. No number is negative.
struct LayoutItem {
  double cost = 0;              // of a microbatch, in any unit
  double resident_bytes = 0;    // whatever the microbatches: parameters, gradients, optimizer state
  double activation_bytes = 0;  // kept for each microbatch between its forward and its backward
  // What it takes at least, where parameters and gradients exist in full only while they are needed: all the time, for
  // each microbatch, and while it computes.
  double always_bytes = 0, kept_bytes = 0, passing_bytes = 0;
};

struct LayoutItems {
  LayoutItem embedding, head;
  std::vector<LayoutItem> blocks;  // in model order, at least one
};

// Who runs the stages, and what the order of the step has ranks keep.
struct LayoutRanks {
  std::vector<int> rank_of_stage;  // every rank from 0 on has a stage
  // By rank: instants of the step, each as the microbatches that the rank's stages keep then, in ascending order of
  // stages. Those at which another keeps no less of any may be left out.
  std::vector<std::vector<std::vector<int>>> kept;

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(kept.size()); }
};
// As 1F1B: a stage keeps as many microbatches as there are stages from it to the last, and at most all.
LayoutRanks one_stage_each(int stages, int microbatches);

// How many blocks each stage holds. The embedding stands on the first stage, the head on the last.
//
// In the steady state of a schedule every rank works off one microbatch on all its stages in the time that the rank
// with most work takes. So the most loaded rank comes first, as cheap as can be, but for a hundredth; among such splits
// the most expensive stage, which is what a microbatch waits for where the pipeline fills and drains; among those the
// rank that takes most memory, its residents and the activations at its fullest instant. What is equal in all this is
// dealt without preference.
//
// Where a rank runs one stage, its load is that stage's, and more is asked: the most expensive stage is as cheap as can
// be, and so is that of the stages before the last for the blocks they have, of those before these, and so on. Among
// splits that are equal in this, the stage that takes most memory is as small as can be; among those, later stages get
// more. That is exact. Where a rank runs several, it is exact for small models, and for large ones as good as bounded
// work finds, starting from the best split by stages (rank_layout.h).
//
// A stage holds at least one block as long as there are enough, but for a last one with the head alone where that alone
// makes the most loaded rank, or the most expensive stage, cheaper. Where there are more stages than blocks, a stage
// holds at most one, and as few as can be hold nothing: one more stage goes to the embedding or to the head, by the
// same preferences, the next to the other, and those beyond stand empty right behind the embedding, where a block would
// keep the activations of most microbatches.
//
// `memory_limit`: bytes of a rank, of what its pieces take at least. No split whose fullest rank exceeds it is dealt
// while another fits, of those with as many blocks a stage as said above. If none fits, the split whose fullest rank
// takes least is dealt: whoever set the limit says what is too much, and by how much, from the plan of that layout.
std::vector<int> automatic_layout(const LayoutItems& items, const LayoutRanks& ranks,
                                  std::optional<double> memory_limit = {});

}  // namespace weft
