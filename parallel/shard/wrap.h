// How the parameters of a family are wrapped into shard units: the sizes between one unit for everything and one for
// each half of a block. Larger units take fewer gathers and more memory at once. As data, with a text form.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/parameter.h"

namespace weft {

enum class WrapKind : std::uint8_t {
  block,          // one unit a block
  half_block,     // one unit a segment: the attention and the MLP of a block apart
  blocks,         // `amount` consecutive blocks of the stage in one unit
  minimum_bytes,  // neighbours merged until a unit has `amount` bytes when gathered
  root,           // everything of the stage in its root unit
};

// As text: "block", "half_block", "blocks 2", "minimum_bytes 4000000", "root".
struct WrapPolicy {
  WrapKind kind = WrapKind::block;
  std::int64_t amount = 0;  // of `blocks` and `minimum_bytes`, at least 1; otherwise 0
  bool operator==(const WrapPolicy&) const = default;
};
std::string text_of(const WrapPolicy& policy);
// Throws Error (request) saying what can be written.
WrapPolicy parse_wrap(std::string_view text);

// By family; a family that is not named is wrapped by block.
using WrapPolicies = std::map<Family, WrapPolicy>;

// What a user should know before such units are formed, a sentence each.
std::vector<std::string> wrap_warnings(const WrapPolicies& policies);

}  // namespace weft
