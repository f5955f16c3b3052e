#include "layers/kernels/load_balance.h"

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

void require_slice(TokenSlice slice, std::int64_t tokens, std::int64_t sequences) {
  require(slice.sequence_tokens > 0 && slice.first_token >= 0 &&
              slice.first_token + tokens <= sequences * slice.sequence_tokens,
          "a slice lies inside the sequences of its microbatch");
}

}  // namespace

void expert_statistics(KernelContext& context, ConstTensorView scores, ConstTensorView indices, Scoring scoring,
                       TokenSlice slice, TensorView counts, TensorView score_sums) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = scores.rows(), experts = scores.columns();
  require(indices.rows() == tokens, "every token has its choices");
  require(counts.columns() == experts && score_sums.columns() == experts && counts.rows() == score_sums.rows(),
          "statistics have one row a sequence and one column an expert");
  require_slice(slice, tokens, counts.rows());
  context.kernels.load_balance.statistics(context, scores, indices, scoring, slice, counts, score_sums);
}

void scale_counts(KernelContext& context, ConstTensorView choices, double factor, TensorView counts) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(choices.size() == counts.size() && choices.dtype() == DType::float64, "every expert has a count");
  context.kernels.load_balance.scale_counts(context, choices, factor, counts);
}

void auxiliary_loss(KernelContext& context, ConstTensorView counts, ConstTensorView score_sums, std::int64_t choices,
                    std::int64_t sequence_length, double factor, TensorView loss) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(counts.size() == score_sums.size(), "counts and sums of scores describe the same experts");
  context.kernels.load_balance.auxiliary_loss(context, counts, score_sums, choices, sequence_length, factor, loss);
}

void auxiliary_loss_backward(KernelContext& context, ConstTensorView scores, ConstTensorView counts, Scoring scoring,
                             TokenSlice slice, std::int64_t choices, float factor, TensorView dscores) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = scores.rows(), experts = scores.columns();
  require(dscores.rows() == tokens && dscores.columns() == experts, "a gradient has the shape of its tensor");
  require(counts.columns() == experts, "every expert has a count");
  require_slice(slice, tokens, counts.rows());
  if (scores.empty()) return;
  context.kernels.load_balance.auxiliary_loss_backward(context, scores, counts, scoring, slice, choices, factor,
                                                       dscores);
}

void z_loss(KernelContext& context, ConstTensorView logits, double factor, float gradient_factor, TensorView dlogits,
            TensorView loss) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(dlogits.rows() == logits.rows() && dlogits.columns() == logits.columns(),
          "a gradient has the shape of its tensor");
  if (!logits.empty()) context.kernels.load_balance.z_loss(context, logits, factor, gradient_factor, dlogits, loss);
}

}  // namespace weft
