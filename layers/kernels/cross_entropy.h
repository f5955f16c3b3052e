// Cross-entropy over a sharded vocabulary, in the three steps between which the shards exchange one number a token
// and then two.
// logits [tokens, columns] float32 of vocabulary entries [begin, begin + columns). Targets are global ids.
#pragma once

#include <span>

#include "layers/kernels/context.h"

namespace weft {

// maximum [tokens, 1] float32: largest logit of this shard, -infinity for an empty shard.
void vocabulary_max(KernelContext& context, ConstTensorView logits, TensorView maximum);
// sums [tokens, 2] float32: sum of exp(logit - maximum) and, if the target is in this shard, its logit - maximum (else
// 0).
void vocabulary_sums(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                     std::span<const std::int32_t> targets, std::int64_t begin, TensorView sums);
// With maximum and sums complete over all shards: dlogits = factor * (softmax - one_hot), in float32 or bfloat16. A
// float32 `dlogits` may be `logits` itself. Returns the sum over tokens of log(sum) - target, the loss in nats, in
// double.
double cross_entropy_gradient(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                              ConstTensorView sums, std::span<const std::int32_t> targets, std::int64_t begin,
                              float factor, TensorView dlogits);

}  // namespace weft
