// Cross-entropy over a sharded vocabulary. Each shard reads its logits once for its maximum and sums. Shards exchange
// one number per token, shift their sums to the common maximum, and exchange two. logits [tokens, columns] float32 are
// those of vocabulary entries [begin, begin + columns). targets [tokens, 1] int32 are global ids. A target below 0
// marks a token that does not count, for example padding: it has neither loss nor gradient.
#pragma once

#include "layers/kernels/context.h"
#include "parallel/runtime/range.h"

namespace weft {

// maximum [tokens, 1] float32: largest logit of this shard, -infinity for an empty shard. sums [tokens, 2] float32: sum
// of exp(logit - maximum) and, if the target is in this shard, its logit - maximum (else 0). Both
// are relative to 0 where the maximum is -infinity.
void vocabulary_sums(KernelContext& context, ConstTensorView logits, ConstTensorView targets, std::int64_t begin,
                     TensorView maximum, TensorView sums);
// From the maximum of this shard, which has the vocabulary's `entries`, to the largest of all shards: sums of
// `of_shard` become sums of `maximum`. Both [tokens, 1] float32.
void shift_vocabulary_sums(KernelContext& context, ConstTensorView of_shard, ConstTensorView maximum,
                           ConstTensorView targets, Range entries, TensorView sums);
// With maximum and sums complete over all shards: dlogits = factor * (softmax - one_hot), in float32, bfloat16 or
// float16. A float32 `dlogits` may be `logits` itself. loss [1, 1] float64 += the sum over tokens of log(sum) - target,
// in nats, summed in double in an order that depends on the shape alone. An empty `loss` is skipped.
void cross_entropy_gradient(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                            ConstTensorView sums, ConstTensorView targets, std::int64_t begin, float factor,
                            TensorView dlogits, TensorView loss);

struct CrossEntropyKernels {
  decltype(&vocabulary_sums) sums;
  decltype(&shift_vocabulary_sums) shift_sums;
  decltype(&cross_entropy_gradient) gradient;
};

}  // namespace weft
