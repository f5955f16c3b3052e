#include "layers/kernels/cross_entropy.h"

#include "layers/kernels/kernels.h"

namespace weft {

void vocabulary_sums(KernelContext& context, ConstTensorView logits, ConstTensorView targets, std::int64_t begin,
                     TensorView maximum, TensorView sums) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = logits.rows();
  require(maximum.size() == tokens && targets.size() == tokens && sums.size() == 2 * tokens,
          "one maximum, one target and two sums a token");
  context.kernels.cross_entropy.sums(context, logits, targets, begin, maximum, sums);
}

void shift_vocabulary_sums(KernelContext& context, ConstTensorView of_shard, ConstTensorView maximum,
                           ConstTensorView targets, Range entries, TensorView sums) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = maximum.size();
  require(of_shard.size() == tokens && targets.size() == tokens && sums.size() == 2 * tokens,
          "two maxima, one target and two sums a token");
  context.kernels.cross_entropy.shift_sums(context, of_shard, maximum, targets, entries, sums);
}

void cross_entropy_gradient(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                            ConstTensorView sums, ConstTensorView targets, std::int64_t begin, float factor,
                            TensorView dlogits, TensorView loss) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  const std::int64_t tokens = logits.rows();
  require(maximum.size() == tokens && targets.size() == tokens && sums.size() == 2 * tokens,
          "one maximum, one target and two sums a token");
  require(dlogits.rows() == tokens && dlogits.columns() == logits.columns(), "one gradient a logit");
  require(loss.size() <= 1, "the losses of all tokens have one sum");
  context.kernels.cross_entropy.gradient(context, logits, maximum, sums, targets, begin, factor, dlogits, loss);
}

}  // namespace weft
