#include "trainer/inference/generation_run.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "layers/generation.h"
#include "layers/kernels/float8.h"
#include "parallel/runtime/error.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"

namespace weft {
namespace {

// The plan of a pass of this shape, on the rank with these coordinates. `config` is from for_generation().
ForwardPlan plan_generation(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const GenerationShape& shape) {
  SegmentSetup setup = segment_setup(config, at);
  // Rows are padded to what the tensor group divides, and to what products in float8_blocks take.
  const bool in_blocks = setup.format_of(Family::dense) == ProductFormat::float8_blocks;
  const std::int64_t unit = std::lcm<std::int64_t>(setup.tensor, in_blocks ? float8_row_multiple : 1);
  setup.microbatch_tokens = (shape.rows() + unit - 1) / unit * unit;
  // Only mixers depend on sequences, and they take them from `shape`.
  setup.sequence_length = setup.microbatch_tokens;

  PlannedInputs inputs = plan_inputs(config, at);
  inputs.rotary.heads.sequence_length = shape.capacity;
  inputs.positions = {{0, shape.capacity}};
  inputs.microbatch_tokens = setup.microbatch_tokens;
  inputs.boundary.rows = setup.slice_tokens();

  SegmentMakers makers;
  makers.attention = [&shape](const SegmentSetup& of, int block) { return make_cached_attention(of, shape, block); };
  makers.state_space = [&shape](const SegmentSetup& of, int block) {
    return make_continued_state_space(of, shape, block);
  };
  makers.head = [&shape](const SegmentSetup& of) { return make_logits_head(of, shape); };
  return assemble_forward(config, std::move(inputs), at.pp, 1, [&, layout = stage_layout(config)](int stage) {
    const StageBlocks& blocks = layout[static_cast<std::size_t>(stage)];
    return plan_stage(config, mesh, stage, layout, make_segments(config, setup, stage, blocks, makers));
  });
}

// Sizes of the caches that the rank keeps between passes, by block.
std::map<int, std::vector<CacheSize>> planned_caches(const Config& config, const Coordinates& at,
                                                     std::int64_t sequences, std::int64_t capacity) {
  const SegmentSetup setup = segment_setup(config, at);
  const auto layout = stage_layout(config);
  std::map<int, std::vector<CacheSize>> caches;
  for (const int stage : stages_of_rank(config, at.pp)) {
    const StageBlocks& blocks = layout[static_cast<std::size_t>(stage)];
    for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
      caches[block] = cache_sizes(setup, block, sequences, capacity);
    }
  }
  return caches;
}

}  // namespace

Config for_generation(Config config) {
  if (config.parallelism.context > 1) {
    fail_request(
        "parallelism.context {} cuts every sequence, but text is generated from whole ones: give "
        "--parallelism.context=1, and the ranks to another axis, as with --parallelism.data_shard={}",
        config.parallelism.context, config.parallelism.data_shard * config.parallelism.context);
  }
  config = for_inference(std::move(config));
  // The choices that an expert drops, or is dealt, depend on the tokens beside: other samples, and the prompt or a
  // single position.
  config.model.moe.capacity_factor = 0.0;
  config.model.moe.force_balance = false;
  config.training.global_batch_size = config.training.microbatch_size * config.parallelism.data();
  return config;
}

GenerationRun::GenerationRun(const Config& config, const Mesh& mesh, std::int64_t sequences, std::int64_t capacity,
                             const FillWeights& fill_weights, const RankContext& context)
    : config_(config),
      mesh_(mesh),
      at_(mesh.coordinates(context.world.rank())),
      sequences_(sequences),
      capacity_(capacity),
      sampler_(mesh.rank_at(stage_ranks(config).back(), 0, 0, 0, 0)) {
  require(sequences >= 1 && capacity >= 1, "there is something to generate");
  shape_ = {.capacity = capacity};
  run_ = std::make_unique<ForwardRun>(config, mesh, plan_generation(config, mesh, at_, shape_), fill_weights, context);
  const std::int64_t experts = config.model.moe.num_experts;
  report_ =
      run_->ledger().allocate(Bucket::workspace, DType::float64,
                              StepReport::size(static_cast<std::int64_t>(config.model.blocks.size()), experts), 1);
  fill(run_->kernels().stream, report_, 0.0f);
  predicted_ = run_->plan().predicted.bytes;
  for (const auto& [block, sizes] : planned_caches(config, at_, sequences, capacity)) {
    for (const CacheSize& size : sizes) {
      state_.caches[block].push_back(run_->ledger().allocate(Bucket::activations, size.dtype, size.rows, size.columns));
      cache_bytes_ += size.bytes();
    }
  }
  predicted_[Bucket::activations] += cache_bytes_;
}

void GenerationRun::take_shape(const GenerationShape& shape) {
  if (shape == shape_) return;
  shape_ = shape;
  run_->replace(plan_generation(config_, mesh_, at_, shape));
  BucketBytes bytes = run_->plan().predicted.bytes;
  bytes[Bucket::activations] += cache_bytes_;
  if (bytes.total() > predicted_.total()) predicted_ = bytes;
}

std::vector<float> GenerationRun::feed(std::span<const std::int32_t> tokens, std::int64_t sequences,
                                       std::int64_t wanted) {
  require(sequences == sequences_ || sequences == 1, "all sequences go on, or the first alone");
  const auto count = static_cast<std::int64_t>(tokens.size()) / sequences;
  require(count >= 1 && count * sequences == static_cast<std::int64_t>(tokens.size()),
          "every sequence has equally many new tokens");
  take_shape({sequences, count, capacity_, wanted});
  Stream& stream = run_->kernels().stream;
  const std::int64_t padded = run_->plan().inputs.microbatch_tokens;
  Staging staging(stream.device(), DType::int32, padded);
  const std::span<std::int32_t> ids = staging.as<std::int32_t>();
  std::ranges::fill(ids, 0);
  std::ranges::copy(tokens, ids.begin());
  Tensor on_device = run_->ledger().allocate(Bucket::workspace, DType::int32, padded, 1);
  staging.upload(stream, on_device);
  // A head that returns logits reads no targets, so the tokens stand in for them.
  run_->pass({on_device, on_device}, StepReport(report_, config_.model.moe.num_experts), &state_);
  state_.position += count;
  if (!state_.logits.allocated()) return {};
  const std::vector<float> parts = read<float>(stream, state_.logits);
  state_.logits.reset();
  return whole_logits(parts, sequences * wanted, config_.model.vocab_size, config_.parallelism.tensor);
}

void GenerationRun::share_first_sequence() {
  for (auto& [block, caches] : state_.caches) {
    const bool grows = config_.model.blocks[static_cast<std::size_t>(block)].mixer == Mixer::attention;
    for (Tensor& cache : caches) {
      // Of attention the rows behind the position are not written yet.
      const std::int64_t rows = cache.rows() / sequences_, written = grows ? state_.position : rows;
      const ConstTensorView first = cache.view().rows_from(0, written);
      for (std::int64_t sequence = 1; sequence < sequences_; ++sequence) {
        cast(run_->kernels().stream, first, cache.view().rows_from(sequence * rows, written));
      }
    }
  }
}

void GenerationRun::broadcast(std::span<std::int32_t> tokens) {
  Stream& stream = run_->kernels().stream;
  const auto count = static_cast<std::int64_t>(tokens.size());
  Tensor on_device = run_->ledger().allocate(Bucket::workspace, DType::int32, count, 1);
  write<std::int32_t>(stream, tokens, on_device);
  run_->world().broadcast(on_device, sampler_);
  std::ranges::copy(read<std::int32_t>(stream, on_device), tokens.begin());
}

}  // namespace weft
