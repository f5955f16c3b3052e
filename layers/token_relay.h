// Tokens on their way between the parts of an expert group, before choices become rows. The ranks of a relay group
// (Group::ep_relay) have one rank in each part, and part p holds the experts [p * n, (p + 1) * n). A rank passes on all
// of its tokens (dispatch "all_gather"), or to each part one copy of the tokens with a choice there ("hierarchical").
// Results go back the same way, summed over parts. Tensors of tokens that have arrived are in the order of the ranks
// they come from.
#pragma once

#include <vector>

#include "layers/expert_exchange.h"
#include "layers/segment.h"

namespace weft {

// Copies of a token that a relay to parts makes: at most, and on average with evenly routed tokens.
struct TokenCopies {
  std::int64_t most = 1;
  double mean = 1.0;
};
TokenCopies copies_of_token(const MoeConfig& moe, int parts);
// Those that each part gets of so many evenly routed tokens.
std::int64_t even_copies(const MoeConfig& moe, int parts, std::int64_t tokens);

class TokenRelay {
 public:
  explicit TokenRelay(const SegmentSetup& setup)
      : setup_(setup), copies_(copies_of_token(setup.model.moe, setup.expert_relay)) {}

  struct Kept {
    std::vector<std::int64_t> send_rows, receive_rows;  // by rank of the relay group
    Tensor slots;  // [slice tokens, choices]: place of a token's copy for the part of a choice; empty if all are passed
  };

  bool used() const { return setup_.expert_relay > 1; }
  int parts() const { return setup_.expert_relay; }
  // Of this rank's part.
  std::int64_t experts() const { return setup_.model.moe.num_experts / parts(); }
  std::int64_t first_expert() const;
  // Most tokens that can arrive, and most copies that this rank sends.
  std::int64_t bound_tokens() const { return parts() * setup_.slice_tokens(); }
  std::int64_t bound_copies() const { return setup_.slice_tokens() * copies_.most; }
  std::int64_t kept_bytes() const;
  // Of rows of `row` bytes out and back, once in a forward and once in an input gradient, and of what belongs to them.
  std::vector<SegmentTraffic> traffic(std::int64_t row) const;

  // `choices` [slice tokens, choices] int32. Collective over the relay group, as all calls. The host waits for the row
  // counts of the group unless all tokens are passed on.
  Kept plan(LayerContext& context, ConstTensorView choices) const;
  // [slice tokens, columns] of any dtype -> [arrived, columns]. The compute lane waits in finish() alone. `storage`
  // holds `rows`, if nothing else does until then.
  RowsUnderWay prepare(LayerContext& context, const Kept& kept, ConstTensorView rows, Tensor storage = {}) const;
  void start(LayerContext& context, const Kept& kept, RowsUnderWay& rows) const;
  Tensor finish(LayerContext& context, const Kept& kept, RowsUnderWay rows) const;
  Tensor pass(LayerContext& context, const Kept& kept, ConstTensorView rows) const;
  // The reverse, of a float dtype: [arrived, columns] -> [slice tokens, columns], summed over parts.
  static RowsUnderWay prepare_back(Tensor rows) { return {.leaving = std::move(rows), .back = true}; }

 private:
  SegmentSetup setup_;
  TokenCopies copies_;
};

}  // namespace weft
