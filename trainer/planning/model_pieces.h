// The pieces of a model as the bounds of a search know them (search_bounds.h), each with its bytes and seconds on a
// rank. They are embedding, head, a block of each kind and width, and the predictors. All layouts and orders have the
// same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/costs/hardware.h"

namespace weft {

struct UnitSeconds {
  double gathers = 0.0, reductions = 0.0;
  bool operator==(const UnitSeconds&) const = default;
};

// All units of one family in a piece. Seconds of one gather and of one reduction, and of these those in which the
// adapters of the node are busy (ProgramCosts::on_adapters).
struct PieceUnits {
  UnitSeconds seconds, on_adapters;
  std::int64_t unsharded_bytes = 0, gradient_bytes = 0;
  bool operator==(const PieceUnits&) const = default;
};

// Embedding, one block, head, or embedding and head of one stage.
struct ModelPiece {
  int count = 1;                  // pieces of the model that are like this one
  std::int64_t static_bytes = 0;  // a rank's parameters, reduced gradients, optimizer state
  // Least bytes that a microbatch keeps from the piece's forward to the end of its backward, with evenly routed tokens.
  // kept_parted_bytes: if weight gradients are computed apart from input gradients.
  std::int64_t kept_bytes = 0, kept_parted_bytes = 0;
  // Seconds of a microbatch, including collectives of segments. `again`: recomputation of a block.
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0, again = 0.0;
  // The part of `forward`, and of all of them, that the exchanges of rows of overlapped pairs may hide.
  double forward_rows = 0.0, rows = 0.0;
  double on_adapters = 0.0;  // of all of them
  std::map<Family, PieceUnits> units = {};

  bool operator==(const ModelPiece&) const = default;
  double seconds() const { return forward + backward_input + backward_weight + again; }
};

// Pieces for rank 0's coordinates.
struct ModelPieces {
  ModelPiece embedding = {}, head = {}, both = {};
  std::map<ModelBlock, ModelPiece> blocks = {};
  ModelPiece predictors = {};          // all of them; without units, which they may share
  double message = 0.0;                // seconds of a microbatch from one pipeline rank to the next
  std::vector<int> node_of_rank = {};  // by pipeline rank: ranks with one number share adapters
  // Whether every piece has units of its own, whatever its neighbours. If not, static bytes are those of single pieces.
  // Their padding can exceed that of the stages, so they bound nothing.
  bool separable = true;

  bool operator==(const ModelPieces&) const = default;
};

// Makes the pieces of configurations that differ only in the mesh, the microbatch, recompute and the policies of
// sharding. Segments and units are planned once where these do not change them. Any number of threads may ask.
class KnownPieces {
 public:
  // The hardware outlives this.
  explicit KnownPieces(const Hardware& hardware) : hardware_(hardware) {}

  // `policy`: equal for policies under which a stage has the same units.
  ModelPieces of(const Config& config, const std::string& policy);

  struct Segments;
  struct Units;

 private:
  const Hardware& hardware_;
  std::mutex mutex_;
  std::map<std::vector<std::int64_t>, std::shared_ptr<Segments>> segments_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::shared_ptr<Units>> units_;
};
inline ModelPieces model_pieces(const Config& config, const Hardware& hardware) {
  return KnownPieces(hardware).of(config, {});
}

}  // namespace weft
