// What a choice of a search takes at least, without its program: sums over the pieces of the model, planned once for a
// mesh, and a walk through the order of the pipeline's stages. Never more than plan_run() finds, so that what is above
// a limit can be passed over.
#pragma once

#include <map>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"
#include "trainer/costs/hardware.h"

namespace weft {

// Units of one family in a piece, all together. Seconds of one gather, one reduction.
struct PieceUnits {
  double gather = 0.0, reduce = 0.0;
  std::int64_t unsharded_bytes = 0, gradient_bytes = 0;
};

// Embedding, one block, head, or embedding and head of one stage.
struct ModelPiece {
  std::int64_t static_bytes = 0;  // parameters, reduced gradients, optimizer state of a rank
  // Of a microbatch, kept from the forward of the piece to the end of its backward, at least, whatever the router says;
  // the second where weight gradients come apart from input gradients.
  std::int64_t kept_bytes = 0, kept_parted_bytes = 0;
  // Seconds of a microbatch, collectives inside included; `again` of a block that is made again.
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0, again = 0.0;
  std::map<Family, PieceUnits> units = {};

  double seconds() const { return forward + backward_input + backward_weight + again; }
};

// Of rank 0's coordinates; depends on the mesh, the microbatch, recompute, and of the shard policy on the strategy.
struct ModelPieces {
  ModelPiece embedding, head, both;
  std::map<BlockKind, ModelPiece> blocks;
  // Whether each piece has units of its own, whatever stands beside it; otherwise static bytes are those of pieces
  // alone, which padding can make a little more than those of the stages, and they bound nothing.
  bool separable = true;
};
ModelPieces model_pieces(const Config& config, const Hardware& hardware);

struct LeastTaken {
  double seconds = 0.0;
  std::int64_t static_bytes = 0;  // of the fullest rank
  std::int64_t bytes = 0;         // with what is kept of microbatches, gradients and parameters that stay
};

// Whatever stages hold: the mean over pipeline ranks.
LeastTaken least_of_any_layout(const Config& config, const ModelPieces& pieces);
// Of the stages that the configuration has.
LeastTaken least_taken(const Config& config, const ModelPieces& pieces);

}  // namespace weft
