#include "layers/kernels/routing.h"

#include "layers/kernels/kernels.h"

namespace weft {

void route_forward(KernelContext& context, ConstTensorView logits, Scoring scoring, bool normalise, TensorView scores,
                   TensorView indices, TensorView weights) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = logits.rows(), experts = logits.columns(), choices = indices.columns();
  require(scores.rows() == tokens && scores.columns() == experts, "every logit has a score");
  require(indices.rows() == tokens && weights.rows() == tokens && weights.columns() == choices,
          "every choice of a token has an index and a weight");
  require(choices <= experts, "a token chooses among its experts");
  if (!logits.empty()) context.kernels.routing.forward(context, logits, scoring, normalise, scores, indices, weights);
}

void route_backward(KernelContext& context, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, Scoring scoring, bool normalise, TensorView dlogits) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = scores.rows(), experts = scores.columns(), choices = indices.columns();
  require(dlogits.rows() == tokens && dlogits.columns() == experts, "a gradient has the shape of its tensor");
  require(dscores.empty() || (dscores.rows() == tokens && dscores.columns() == experts), "every score has a gradient");
  require(indices.rows() == tokens && dweights.rows() == tokens && dweights.columns() == choices,
          "every choice of a token has an index and a gradient");
  if (scores.empty()) return;
  context.kernels.routing.backward(context, dweights, dscores, scores, indices, scoring, normalise, dlogits);
}

}  // namespace weft
