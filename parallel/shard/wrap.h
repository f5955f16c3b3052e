// The wrapping of a family's parameters into shard units, from one unit for everything to one for each parameter.
// Larger units need fewer gathers and more memory at once. Policies are data with a text form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/parameter.h"

namespace weft {

enum class WrapKind : std::uint8_t {
  parameter,      // one unit for each parameter, with collectives of its own. Parameters that one product reads
                  // together share one (ParameterSpec::stacked), and their rows are cut as those of one matrix.
  block,          // one unit for each block
  half_block,     // one unit for each segment: attention and MLP of a block are separate
  blocks,         // `amount` consecutive blocks of the stage in one unit
  minimum_bytes,  // neighbours merged until a unit has `amount` bytes when gathered
  buckets,        // minimum_bytes of as many parameters as DDP's buckets have (bucket_parameters)
  root,           // in the stage's root unit; experts: one unit of the stage
};
constexpr auto enum_names(WrapKind) {
  return name_list("parameter", "block", "half_block", "blocks", "minimum_bytes", "buckets", "root");
}
// Megatron's size of a bucket of gradients: fewer, larger reductions the more ranks take part.
constexpr std::int64_t bucket_parameters(std::int64_t ranks) {
  return std::max<std::int64_t>(40'000'000, 1'000'000 * ranks);
}

// As text: "parameter", "block", "half_block", "blocks 2", "minimum_bytes 4000000", "buckets", "root".
struct WrapPolicy {
  WrapKind kind = WrapKind::block;
  std::int64_t amount = 0;  // for `blocks` and `minimum_bytes`, at least 1; otherwise 0
  bool operator==(const WrapPolicy&) const = default;
};
// Throws Error (request) that lists the valid forms.
WrapPolicy parse_wrap(std::string_view text);
std::string to_string(const WrapPolicy& policy);

// By family; families without an entry are wrapped by block.
using WrapPolicies = std::map<Family, WrapPolicy>;

// Warnings to a user before such units are formed, one sentence each.
std::vector<std::string> wrap_warnings(const WrapPolicies& policies);

}  // namespace weft
