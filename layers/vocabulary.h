// The two uses of a vocabulary with rows split over the tensor group: ids into vectors, and vectors into the loss of
// the next ids. Parts, not segments: the ends of the model hold one each, and multi-token prediction both.
#pragma once

#include "layers/segment.h"

namespace weft {

// Rows of the embedding's weight by id. Each tensor rank looks up the ids of its rows; the sum over the group is exact.
class VocabularyLookup {
 public:
  explicit VocabularyLookup(const SegmentSetup& setup);

  // ids [microbatch tokens, 1] int32; weight: this rank's rows. Returns [slice tokens, hidden] in the compute dtype.
  Tensor forward(LayerContext& context, ConstTensorView ids, ConstTensorView weight) const;
  // dy: the gradient of forward's result. Adds to the gradient of the weight, unless that is empty.
  void backward_weight(LayerContext& context, ConstTensorView ids, ConstTensorView dy, const Gradient& gradient) const;

  // The collectives of both functions.
  std::vector<SegmentTraffic> traffic() const;

 private:
  // For each token the rows of all tensor ranks except one are zero, so their sum is exact in any dtype.
  DType exchanged() const;

  SegmentSetup setup_;
  Range rows_;
};

// Output projection and cross-entropy. Logits are never gathered: the shards of the vocabulary exchange three numbers a
// token (maximum, sum of exponentials, logit of the target).
class VocabularyLoss {
 public:
  explicit VocabularyLoss(const SegmentSetup& setup);

  // Of the result of forward().
  std::int64_t gradient_bytes() const;
  // normed: [slice tokens, hidden] in the head's dtype; targets [microbatch tokens, 1] int32. Adds the losses in nats
  // to `loss`, [1, 1] float64, or nowhere if it is empty. Returns the gradient of the logits times `factor`,
  // [microbatch tokens, vocabulary rows of this rank].
  Tensor forward(LayerContext& context, ConstTensorView normed, ConstTensorView weight, ConstTensorView targets,
                 float factor, TensorView loss) const;
  // This rank's part of the gradient of `normed`, of all tokens, which scatter_tokens() sums.
  Tensor backward_input(LayerContext& context, ConstTensorView dlogits, ConstTensorView weight) const;
  void backward_weight(LayerContext& context, ConstTensorView dlogits, ConstTensorView normed,
                       const Gradient& gradient) const;

  // The collectives of these functions.
  std::vector<SegmentTraffic> traffic() const;

 private:
  // Of some tokens. The gradient of their logits is computed in place if it is float32.
  void logits_to_gradient(LayerContext& context, ConstTensorView normed, ConstTensorView weight,
                          ConstTensorView targets, float factor, TensorView loss, TensorView dlogits) const;

  SegmentSetup setup_;
  Range rows_;
};

}  // namespace weft
