#include "trainer/costs/step_flops.h"

#include "trainer/layout/stage_layout.h"

namespace weft {

double step_flops(const Config& config) {
  double forward = head_flops(config.model);
  for (BlockKind kind : config.model.blocks)
    forward += block_flops(config.model, kind, config.training.sequence_length);
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  return 3.0 * forward * tokens;
}

}  // namespace weft
