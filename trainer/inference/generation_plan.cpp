#include "trainer/inference/generation_plan.h"

#include <numeric>

#include "layers/kernels/float8.h"
#include "layers/logits_head.h"
#include "parallel/runtime/error.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"

namespace weft {

Config for_generation(Config config) {
  if (config.parallelism.context > 1) {
    fail_request(
        "parallelism.context {} cuts every sequence, but text is generated from whole ones: give "
        "--parallelism.context=1, and the ranks to another axis, as with --parallelism.data_shard={}",
        config.parallelism.context, config.parallelism.data_shard * config.parallelism.context);
  }
  config = without_training(std::move(config));
  config.training.global_batch_size = config.training.microbatch_size * config.parallelism.data();
  return config;
}

ForwardPlan plan_generation(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const GenerationShape& shape) {
  SegmentSetup setup = segment_setup(config, at);
  // Rows are padded to what the tensor group divides, and to what products in float8_blocks take.
  const bool in_blocks = setup.format_of(Family::dense) == ProductFormat::float8_blocks;
  const std::int64_t unit = std::lcm<std::int64_t>(setup.tensor, in_blocks ? float8_row_multiple : 1);
  setup.microbatch_tokens = (shape.rows() + unit - 1) / unit * unit;
  // Only attention depends on sequences, and it takes them from `shape`.
  setup.sequence_length = setup.microbatch_tokens;

  PlannedInputs inputs = plan_inputs(config, at);
  inputs.rotary.heads.sequence_length = shape.capacity;
  inputs.positions = {{0, shape.capacity}};
  inputs.microbatch_tokens = setup.microbatch_tokens;
  inputs.boundary.rows = setup.slice_tokens();

  SegmentMakers makers;
  makers.attention = [&shape](const SegmentSetup& of, int block) { return make_cached_attention(of, shape, block); };
  makers.head = [&shape](const SegmentSetup& of) { return make_logits_head(of, shape); };
  return assemble_forward(config, std::move(inputs), at.pp, 1, [&, layout = stage_layout(config)](int stage) {
    const StageBlocks& blocks = layout[static_cast<std::size_t>(stage)];
    return plan_stage(config, mesh, stage, blocks, make_segments(config, setup, stage, blocks, makers));
  });
}

std::map<int, CacheSize> planned_caches(const Config& config, const Coordinates& at, std::int64_t sequences,
                                        std::int64_t capacity) {
  const SegmentSetup setup = segment_setup(config, at);
  const auto layout = stage_layout(config);
  std::map<int, CacheSize> caches;
  for (const int stage : stages_of_rank(config, at.pp)) {
    const StageBlocks& blocks = layout[static_cast<std::size_t>(stage)];
    for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
      caches[block] = cache_size(setup, sequences, capacity);
    }
  }
  return caches;
}

}  // namespace weft
