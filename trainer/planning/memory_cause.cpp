#include "trainer/planning/memory_cause.h"

#include "parallel/runtime/enum_names.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

std::string_view name_of(Cause cause) {
  constexpr std::string_view names[cause_count] = {
      "activations",   "state",    "unsharded parameters", "unsharded gradients", "routing of experts",
      "communication", "workspace"};
  return names[static_cast<std::size_t>(cause)];
}

Cause cause_of(Bucket bucket) {
  if (PredictedMemory::is_static(bucket)) return Cause::state;
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
  Cause largest = Cause::activations;
  for (std::size_t c = 0; c < cause_count; ++c) {
    const auto cause = static_cast<Cause>(c);
    if (bytes_of(cause, bytes) > bytes_of(largest, bytes)) largest = cause;
  }
  return largest;
}

}  // namespace weft
