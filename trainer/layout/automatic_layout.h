// Blocks dealt to stages by cost. Pure arithmetic: what an item costs is said by whoever asks, from a model or from
// measurements.
#pragma once

#include <vector>

namespace weft {

// What a piece of the model asks of the rank that holds it.
struct LayoutItem {
  double cost = 0;              // of a microbatch, in any unit
  double resident_bytes = 0;    // whatever the microbatches: parameters, gradients, optimizer state
  double activation_bytes = 0;  // kept for each microbatch between its forward and its backward
};

struct LayoutItems {
  LayoutItem embedding, head;
  std::vector<LayoutItem> blocks;  // in model order, at least one
};

// How many blocks each stage holds. The embedding stands on the first stage, the head on the last.
//
// The most expensive stage is as cheap as can be, and so is that of the stages before the last for the blocks they
// have, of those before these, and so on. Among splits that are equal in this, the stage that takes most memory is as
// small as can be, where a stage keeps the activations of as many microbatches as there are stages from it to the last
// (as 1F1B does, and at most all `microbatches`); among those, later stages get more.
//
// A stage holds at least one block as long as there are enough, but for a last one with the head alone where that alone
// makes the most expensive stage cheaper. Where there are more stages than blocks, a stage holds at most one, and as
// few as can be hold nothing: one more stage goes to the embedding or to the head, by the same preferences, the next to
// the other, and those beyond stand empty right behind the embedding, where a block would keep the activations of most
// microbatches.
std::vector<int> automatic_layout(const LayoutItems& items, int stages, int microbatches);

}  // namespace weft
