#include "trainer/planning/memory_cause.h"

#include <algorithm>

namespace weft {

Cause cause_of(Bucket bucket) {
  if (is_static(bucket)) return Cause::state;
  switch (bucket) {
    case Bucket::unsharded_parameters:
      return Cause::unsharded_parameters;
    case Bucket::unsharded_gradients:
      return Cause::unsharded_gradients;
    case Bucket::activations:
      return Cause::activations;
    case Bucket::moe_routing:
      return Cause::routing;
    case Bucket::communication:
      return Cause::communication;
    default:
      return Cause::workspace;
  }
}

std::int64_t bytes_of(Cause cause, const BucketBytes& bytes) {
  std::int64_t sum = 0;
  for (const Bucket bucket : all_values<Bucket>) sum += cause_of(bucket) == cause ? bytes[bucket] : 0;
  return sum;
}

Cause largest_cause(const BucketBytes& bytes) {
  return std::ranges::max(all_values<Cause>, {}, [&](Cause cause) { return bytes_of(cause, bytes); });
}

}  // namespace weft
