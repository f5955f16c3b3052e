#include "trainer/planning/memory_cause.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft {

Cause cause_of(Bucket bucket) {
  if (is_static(bucket)) return Cause::state;
  constexpr std::pair<Bucket, Cause> causes[] = {{Bucket::unsharded_parameters, Cause::unsharded_parameters},
                                                 {Bucket::unsharded_gradients, Cause::unsharded_gradients},
                                                 {Bucket::activations, Cause::activations},
                                                 {Bucket::moe_routing, Cause::routing},
                                                 {Bucket::communication, Cause::communication}};
  const auto found = std::ranges::find(causes, bucket, &std::pair<Bucket, Cause>::first);
  return found == std::end(causes) ? Cause::workspace : found->second;
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
