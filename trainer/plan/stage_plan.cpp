#include "trainer/plan/stage_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "layers/context_parallel.h"
#include "layers/prediction.h"
#include "parallel/shard/replicated.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/state_layout.h"
#include "trainer/plan/unit_policy.h"

namespace weft {
namespace {

// As [shard], [precision] and training.frozen say.
FullyShardPolicy fully_shard_policy(const Config& config, const Mesh& mesh, int stage) {
  FullyShardPolicy policy;
  policy.wrap = wrap_rules(config, stage);
  policy.shards = [&](Family family) -> std::int64_t {
    const bool whole = config.shard_by_family.at(family).strategy == ShardStrategy::no_shard;
    return whole ? 1 : shard_ranks(mesh.degrees(), family);
  };
  policy.precision = [&](Family family) { return unit_precision(config, family); };
  policy.frozen = config.training.frozen;
  policy.frozen.insert(Family::helpers);
  return policy;
}

PlannedUnit plan_unit(const Config& config, const Mesh& mesh, int stage, FullyShardedUnit made) {
  const Family family = made.plan.family;
  PlannedUnit unit;
  static_cast<FullyShardedUnit&>(unit) = std::move(made);
  if (unit.plan.replicated()) {
    unit.policy = replicated_policy(config, family);
    unit.shard_group = unit.replicate_group = Group::tokens;
  } else {
    unit.policy = resolve_policy(config, family, stage);
    unit.shard_group = shard_group(mesh.degrees(), family);
  }
  if (family == Family::experts) {
    unit.replicate_group = Group::edp_replicate;
    unit.island_group = Group::edp_island;
  }
  return unit;
}

void place_states(const Config& config, std::span<PlannedUnit> units) {
  const ResolvedGroups groups = resolved_groups(config);
  if (config.state_offload > 0.0) choose_host_states(groups, config.state_offload, units);
  for (PlannedUnit& unit : units) {
    if (unit.frozen) continue;
    const StateBytes bytes = state_bytes(groups, unit);
    unit.optimizer_state_bytes = bytes.device;
    unit.host_state_bytes = bytes.host;
    unit.host_chunk_bytes = bytes.chunk;
  }
}

// The stages that use each weight of which several do, ascending, by name.
std::map<std::string, std::vector<int>> stages_of_shared(const ModelConfig& model,
                                                         const std::vector<StageBlocks>& layout) {
  SegmentSetup whole;
  whole.model = model;
  const std::string table = vocabulary_table(whole).name, projection = head_projection(whole).name;
  std::map<std::string, std::vector<int>> stages;
  for (int stage = 0; stage < std::ssize(layout); ++stage) {
    const StageBlocks& blocks = layout[stage];
    const bool predicts = blocks.predicts(model);
    std::set<std::string> used;
    if (blocks.embedding || predicts) used.insert(table);
    if (blocks.head || predicts) used.insert(projection);
    for (const std::string& name : used) stages[name].push_back(stage);
  }
  std::erase_if(stages, [](const auto& entry) { return entry.second.size() < 2; });
  return stages;
}

}  // namespace

SegmentSetup segment_setup(const Config& config, const Coordinates& at) {
  const Degrees& degrees = config.parallelism;
  return {.model = config.model,
          .compute = config.precision_of(Family::dense).compute,
          .embedding_compute = config.precision_of(Family::embedding).compute,
          .expert_compute = config.precision_of(Family::experts).compute,
          .head_compute = config.precision_of(Family::head).compute,
          .formats = {{Family::dense, product_format(config, Family::dense)},
                      {Family::experts, product_format(config, Family::experts)}},
          .sequence_length = config.training.sequence_length,
          .microbatch_tokens = config.microbatch_tokens() / degrees.context,
          .masks_documents = config.text_parts().document_begins,
          .context = degrees.context,
          .context_rank = at.cp,
          .tensor = degrees.tensor,
          .tensor_rank = at.tp,
          .expert = degrees.expert,
          .expert_rank = at.ep,
          .expert_tensor = degrees.expert_tensor,
          .expert_tensor_rank = at.etp,
          .expert_relay = degrees.expert_relay(),
          .relays_all_tokens = degrees.expert_dispatch == ExpertDispatch::all_gather,
          .recompute_cheap = config.training.recompute == Recompute::selective,
          .recompute_experts = config.training.recompute == Recompute::experts,
          .keep_dispatch = config.training.recompute == Recompute::keep_dispatch,
          .weights_at_experts = config.training.weights_at_experts,
          .frozen = config.training.frozen};
}

std::vector<std::unique_ptr<Segment>> make_segments(const Config& config, const SegmentSetup& setup, int stage,
                                                    const StageBlocks& blocks, const SegmentMakers& makers) {
  std::vector<std::unique_ptr<Segment>> segments;
  if (blocks.embedding) segments.push_back(make_embedding(setup));
  const auto trunk = std::make_shared<PredictionTrunk>();
  for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
    const bool predicts = block >= config.model.layers();
    if (predicts) segments.push_back(make_merge(setup, block, trunk));
    const ModelBlock& kind = config.model.blocks[block];
    if (kind.mixer == Mixer::attention) segments.push_back(makers.attention(setup, block));
    if (kind.mixer == Mixer::state_space) segments.push_back(makers.state_space(setup, block));
    SegmentSetup own = setup;
    own.keep_dispatch = setup.keep_dispatch && config.recomputes(block);
    if (kind == BlockKind::dense) segments.push_back(make_mlp(own, block));
    if (kind == BlockKind::moe) segments.push_back(make_moe(own, block));
    if (predicts) segments.push_back(make_predict(setup, block, trunk));
  }
  if (blocks.head) segments.push_back(makers.head(setup));
  if (segments.empty()) segments.push_back(make_identity_segment(stage));
  return segments;
}

PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage,
                        const std::vector<StageBlocks>& layout) {
  const StageBlocks& blocks = layout[stage];
  return plan_stage(config, mesh, stage, layout, make_segments(config, segment_setup(config, at), stage, blocks));
}

PlannedStage plan_stage(const Config& config, const Mesh& mesh, int stage, const std::vector<StageBlocks>& layout,
                        std::vector<std::unique_ptr<Segment>> segments) {
  PlannedStage planned;
  planned.stage = stage;
  planned.segments = std::move(segments);
  const auto stages_of = stages_of_shared(config.model, layout);
  FullyShardPolicy policy = fully_shard_policy(config, mesh, stage);
  for (const auto& [name, stages] : stages_of) policy.wrap.alone.insert(name);
  for (FullyShardedUnit& made : fully_shard(pieces_of(planned.segments), stage, policy)) {
    PlannedUnit& unit = planned.units.emplace_back(plan_unit(config, mesh, stage, std::move(made)));
    const auto shared = stages_of.find(unit.plan.parameters.front().name);
    if (shared == stages_of.end()) continue;
    unit.copies = static_cast<int>(shared->second.size());
    unit.copy = static_cast<int>(std::ranges::find(shared->second, stage) - shared->second.begin());
  }
  place_states(config, planned.units);
  return planned;
}

ModelConfig without_predictors(ModelConfig model) {
  model.blocks.resize(static_cast<std::size_t>(model.layers()));
  model.mtp_depth = 0;
  return model;
}

PlannedStage without_predictors(PlannedStage stage, const ModelConfig& model) {
  std::erase_if(stage.segments, [&](const std::unique_ptr<Segment>& segment) {
    return segment->part().block.value_or(0) >= model.layers();
  });
  if (stage.segments.empty()) stage.segments.push_back(make_identity_segment(stage.stage));
  return stage;
}

std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at,
                                      const std::vector<StageBlocks>& layout) {
  std::vector<PlannedStage> stages;
  for (const int stage : stages_of_rank(config, at.pp)) stages.push_back(plan_stage(config, mesh, at, stage, layout));
  return stages;
}

PlannedInputs plan_inputs(const Config& config, const Coordinates& at) {
  const Degrees& degrees = config.parallelism;
  const std::int64_t length = config.training.sequence_length, tokens = config.microbatch_tokens() / degrees.context;
  PlannedInputs inputs{
      .positions = context_runs(length, degrees.context, at.cp),
      .microbatch_tokens = tokens,
      .boundary = {config.precision_of(Family::dense).compute, tokens / degrees.tensor, config.model.hidden_size},
      .data_ranks = degrees.data(),
      .data_rank = at.dp_replicate * degrees.data_shard + at.dp_shard};
  inputs.rotary.heads = head_shape(config.model, degrees.tensor, length / degrees.context);
  inputs.rotary.theta = config.model.rope_theta;
  return inputs;
}

std::vector<Bucket> differing_static_buckets(const BucketBytes& predicted, const BucketBytes& measured) {
  std::vector<Bucket> differing;
  for (const Bucket bucket : all_values<Bucket>) {
    if (is_static(bucket) && predicted[bucket] != measured[bucket]) differing.push_back(bucket);
  }
  return differing;
}

void add_static_bytes(const PlannedUnit& unit, BucketBytes& bytes) {
  if (unit.plan.replicated()) {
    const std::int64_t whole = ReplicatedParameters::bytes(unit.plan.parameters);
    bytes[Bucket::replicated_parameters] +=
        whole + ReplicatedParameters::copy_bytes(unit.plan.parameters, unit.precision.compute);
    if (!unit.frozen) bytes[Bucket::sharded_gradients] += whole;
  } else {
    const UnitBytes unit_size = unit_bytes(unit.setup());
    bytes[Bucket::sharded_parameters] += unit_size.sharded_parameters;
    bytes[Bucket::sharded_gradients] += unit_size.sharded_gradients;
  }
  bytes[Bucket::optimizer_state] += unit.optimizer_state_bytes;
}

BucketBytes static_bytes(std::span<const PlannedStage> stages) {
  BucketBytes bytes;
  std::int64_t chunk = 0;
  for (const PlannedStage& stage : stages) {
    for (const PlannedUnit& unit : stage.units) {
      add_static_bytes(unit, bytes);
      chunk = std::max(chunk, unit.host_chunk_bytes);
    }
  }
  bytes[Bucket::optimizer_state] += host_chunks_on_device * chunk;
  return bytes;
}

std::int64_t host_state_bytes(std::span<const PlannedStage> stages) {
  std::int64_t bytes = 0;
  for (const PlannedStage& stage : stages) {
    for (const PlannedUnit& unit : stage.units) bytes += unit.host_state_bytes;
  }
  return bytes;
}

std::vector<ParameterSpec> model_parameters(const ModelConfig& model) {
  Config config;
  config.model = model;
  config.training.sequence_length = 1;
  std::vector<ParameterSpec> all;
  const SegmentSetup setup = segment_setup(config, Coordinates{});
  for (const ScopedParameters& piece : pieces_of(make_segments(config, setup, 0, all_blocks(model)))) {
    all.insert(all.end(), piece.parameters.begin(), piece.parameters.end());
  }
  return all;
}

ParameterCount count_parameters(const ModelConfig& model) {
  ParameterCount count;
  for (const ParameterSpec& parameter : model_parameters(model)) {
    const std::int64_t size = parameter.global_size();
    const bool routed = parameter.family == Family::experts;
    count.total += size;
    count.active += routed ? size * model.moe.num_experts_per_tok / model.moe.num_experts : size;
  }
  return count;
}

}  // namespace weft
