#include <algorithm>
#include <map>

#include "parallel/pipeline/accounts/accounts.h"

namespace weft {

std::int64_t host_activation_bytes(const Program& program, int pipeline_rank) {
  struct Blocks {
    std::int64_t used = 0, most = 0;
  };
  std::map<std::int64_t, Blocks> by_size;
  for (const Action& action : program.ranks.at(pipeline_rank)) {
    if (!is_host_copy(action.op)) continue;
    Blocks& blocks = by_size[action.bytes];
    blocks.used += action.op == Op::offload ? 1 : -1;
    blocks.most = std::max(blocks.most, blocks.used);
  }
  std::int64_t bytes = 0;
  for (const auto& [size, blocks] : by_size) bytes += size * blocks.most;
  return bytes;
}

}  // namespace weft
