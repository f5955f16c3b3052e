// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). Behind its blocks a model may have predictors.
// Predictor k = 1, 2, ... of a position i makes h(k) of the hidden state h(k-1) before it and of token i + k. It has a
// merge, a block and a loss of token i + k + 1. h(0) is the last block's output, which the head gets unchanged.
//
//   merge     x = norm(h) hidden_proj + norm(embedding(token i + k)) embedding_proj
//   block     attention, and a dense or expert part, as in any other block
//   predict   cross-entropy of norm(x) with the head's projection
//
// Embedding and projection are those of the model. Losses are divided by the targets of the global batch, as the
// model's (DeepSeek-V3, equation 24), and multiplied by mtp_loss_coef / mtp_depth (equation 25). The predictors of a
// model stand on one stage.
#pragma once

#include <memory>

#include "layers/segment.h"

namespace weft {

// Tensors that the first merge and the last loss of a stage hand each other, past the segments between them. They are
// of the microbatch that goes through the stage. Forward: the hidden state that the predictors began with, which stays
// in the merge. Backward: the gradient of the head with regard to it.
struct PredictionTrunk {
  ConstTensorView hidden;
  Tensor gradient;
};

// `block` counts on behind the layers of the model: ModelConfig::layers() is the first predictor's. The segments
// of a stage share `trunk`.
std::unique_ptr<Segment> make_merge(const SegmentSetup& setup, int block, std::shared_ptr<PredictionTrunk> trunk);
std::unique_ptr<Segment> make_predict(const SegmentSetup& setup, int block, std::shared_ptr<PredictionTrunk> trunk);

}  // namespace weft
