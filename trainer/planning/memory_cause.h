// The causes of a full rank: groups of the ledger's buckets that the same remedies lower (remedies.h).
#pragma once

#include <cstdint>

#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/ledger.h"

namespace weft {

enum class Cause : std::uint8_t {
  activations,
  state,  // parameters at rest, gradients at rest, optimizer state
  unsharded_parameters,
  unsharded_gradients,
  routing,
  communication,
  workspace,
};
constexpr auto enum_names(Cause) {
  return name_list("activations", "state", "unsharded parameters", "unsharded gradients", "routing of experts",
                   "communication", "workspace");
}
Cause cause_of(Bucket bucket);
std::int64_t bytes_of(Cause cause, const BucketBytes& bytes);
// The cause with most bytes.
Cause largest_cause(const BucketBytes& bytes);

}  // namespace weft
