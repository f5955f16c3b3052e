#include "trainer/step_plan.h"

#include <algorithm>

#include "layers/attention.h"
#include "layers/context_parallel.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/passes.h"
#include "parallel/shard/replicated.h"
#include "trainer/optimizer/state_layout.h"
#include "trainer/stage_layout.h"

namespace weft {
namespace {

std::vector<std::unique_ptr<Segment>> make_segments(const Config& config, const Coordinates& at, int stage) {
  SegmentSetup setup;
  setup.model = config.model;
  setup.compute = config.precision.compute;
  setup.sequence_length = config.training.sequence_length;
  setup.context = config.parallelism.context;
  setup.context_rank = at.cp;
  setup.microbatch_tokens = config.microbatch_tokens() / setup.context;
  setup.tensor = config.parallelism.tensor;
  setup.tensor_rank = at.tp;
  setup.expert = config.parallelism.expert;
  setup.expert_rank = at.ep;
  setup.expert_tensor = config.parallelism.expert_tensor;
  setup.expert_tensor_rank = at.etp;

  const auto layout = automatic_layout(config.model, config.training.sequence_length, config.parallelism.pipeline);
  const StageBlocks& blocks = layout[static_cast<std::size_t>(stage)];
  std::vector<std::unique_ptr<Segment>> segments;
  if (blocks.embedding) segments.push_back(make_embedding(setup));
  for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
    segments.push_back(make_attention(setup, block));
    const bool dense = config.model.blocks[static_cast<std::size_t>(block)] == BlockKind::dense;
    segments.push_back(dense ? make_mlp(setup, block) : make_moe(setup, block));
  }
  if (blocks.head) segments.push_back(make_head(setup));
  return segments;
}

UnitPolicy resolve_policy(const Config& config, Family family) {
  UnitPolicy policy;
  if (family == Family::routing) {
    policy.residency = Residency::step;
    policy.reduce_every = config.shard.reduce_every();
    policy.reason =
        "replicated in float32: tiny, on the routing path; all-reduced over every rank that saw other tokens";
    return policy;
  }
  const ShardPolicy& shard = config.shard_by_family.at(family);
  policy.lookahead = shard.lookahead;
  policy.reduce_every = shard.reduce_every();
  if (shard.residency == "stage") {
    const bool pipelined = config.parallelism.pipeline > 1;
    policy.residency = pipelined ? Residency::visit : Residency::each_use;
    policy.reason = pipelined
                        ? "kept while the rank stays on the stage: dropping it would gather it again twice a microbatch"
                        : "dropped after each use: without a pipeline a step uses it only twice a microbatch";
  } else {
    for (Residency residency : {Residency::each_use, Residency::visit, Residency::step}) {
      if (shard.residency == name_of(residency)) policy.residency = residency;
    }
    policy.reason = fmt::format("residency \"{}\" as configured", shard.residency);
  }
  if (shard.strategy == ShardStrategy::no_shard) policy.reason = "not sharded, as configured";
  return policy;
}

PlannedUnit plan_unit(const Config& config, const Mesh& mesh, UnitPlan plan) {
  PlannedUnit unit;
  unit.policy = resolve_policy(config, plan.family);
  unit.precision = {config.precision.compute, config.precision.reduction};
  const Degrees& degrees = mesh.degrees();
  std::int64_t shards = degrees.data_shard * degrees.context;
  if (degrees.context > 1) unit.shard_group = Group::dp_shard_cp;
  if (plan.family == Family::experts) {
    unit.shard_group = Group::edp_shard;
    unit.replicate_group = Group::edp_replicate;
    shards = degrees.expert_data() / mesh.expert_replicas();
  }
  if (!plan.replicated()) {
    const bool whole = config.shard_by_family.at(plan.family).strategy == ShardStrategy::no_shard;
    unit.layout = lay_out_unit(plan.parameters, whole ? 1 : shards);
  } else {
    unit.shard_group = unit.replicate_group = Group::tokens;
  }
  unit.plan = std::move(plan);
  unit.optimizer_state_bytes = state_bytes(resolved_groups(config), unit);
  return unit;
}

ProgramUnit program_unit(const PlannedUnit& unit, int stage) {
  ProgramUnit entry;
  entry.name = unit.plan.name;
  entry.family = unit.plan.family;
  entry.stage = stage;
  entry.group = unit.shard_group;
  entry.policy = unit.policy;
  if (unit.plan.replicated()) {
    entry.replicated = true;
    entry.reduce_bytes = entry.gradient_bytes = ReplicatedParameters::bytes(unit.plan.parameters);
    return entry;
  }
  const UnitBytes bytes = unit_bytes(unit.layout, unit.precision, unit.reduced_once());
  entry.unsharded_bytes = bytes.unsharded_parameters;
  entry.gradient_bytes = bytes.unsharded_gradients;
  if (unit.layout.shards > 1) entry.gather_bytes = bytes.unsharded_parameters;
  entry.reduce_bytes = unit.layout.unsharded_size() * size_of(unit.precision.reduction);
  return entry;
}

Op op_of(SegmentTraffic::When when) {
  switch (when) {
    case SegmentTraffic::When::forward:
      return Op::forward;
    case SegmentTraffic::When::backward_input:
      return Op::backward_input;
    case SegmentTraffic::When::backward_weight:
      return Op::backward_weight;
  }
  return Op::forward;
}

}  // namespace

PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage) {
  PlannedStage planned;
  planned.stage = stage;
  planned.boundary = {config.precision.compute,
                      config.microbatch_tokens() / (config.parallelism.context * config.parallelism.tensor),
                      config.model.hidden_size};
  planned.microbatch_tokens = config.microbatch_tokens() / config.parallelism.context;
  planned.rotary.heads.head_dim = config.model.head_dim;
  planned.rotary.heads.sequence_length = config.training.sequence_length / config.parallelism.context;
  planned.positions = context_runs(config.training.sequence_length, config.parallelism.context, at.cp);
  planned.rotary.theta = config.model.rope_theta;
  planned.segments = make_segments(config, at, stage);
  std::vector<ScopedParameters> pieces;
  for (const auto& segment : planned.segments) pieces.push_back({segment->scope(), segment->parameters()});
  for (UnitPlan& plan : form_units(pieces, stage)) planned.units.push_back(plan_unit(config, mesh, std::move(plan)));
  return planned;
}

ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at) {
  ProgramTables tables;
  for (int s = 0; s < config.parallelism.pipeline; ++s) {
    const PlannedStage planned = plan_stage(config, mesh, at, s);
    ProgramStage stage;
    stage.rank = s;
    stage.output_bytes = planned.boundary.bytes();
    const int first_unit = static_cast<int>(tables.units.size());
    for (const PlannedUnit& unit : planned.units) tables.units.push_back(program_unit(unit, s));
    for (const auto& segment : planned.segments) {
      ProgramSegment entry;
      entry.name = segment->name();
      entry.stage = s;
      entry.activation_bytes = segment->activation_bytes();
      for (std::size_t u = 0; u < planned.units.size(); ++u) {
        const bool used = std::any_of(segment->parameters().begin(), segment->parameters().end(), [&](const auto& p) {
          return unit_name(segment->scope(), p.family, s) == planned.units[u].plan.name;
        });
        if (used) entry.units.push_back(first_unit + static_cast<int>(u));
      }
      for (const SegmentTraffic& traffic : segment->traffic()) {
        if (traffic.count == 0) continue;
        entry.collectives.push_back(
            {op_of(traffic.when), traffic.op, traffic.group, traffic.count, traffic.bytes, traffic.is_bound});
      }
      stage.segments.push_back(static_cast<int>(tables.segments.size()));
      tables.segments.push_back(std::move(entry));
    }
    tables.stages.push_back(std::move(stage));
  }
  return tables;
}

Program step_program(const Config& config, const Mesh& mesh, const Coordinates& at) {
  OrderInput input;
  input.ranks = config.parallelism.pipeline;
  input.microbatches = static_cast<int>(config.microbatches());
  Program program = compile(program_tables(config, mesh, at), find_schedule(config.pipeline.schedule), input);
  check(program);
  return program;
}

bool PredictedMemory::is_static(Bucket bucket) {
  return bucket == Bucket::sharded_parameters || bucket == Bucket::replicated_parameters ||
         bucket == Bucket::sharded_gradients || bucket == Bucket::optimizer_state;
}

PredictedMemory predict_memory(const PlannedStage& stage, const Program& program, int pipeline_rank) {
  PredictedMemory predicted;
  BucketBytes& bytes = predicted.bytes;
  for (const PlannedUnit& unit : stage.units) {
    if (unit.plan.replicated()) {
      const std::int64_t whole = ReplicatedParameters::bytes(unit.plan.parameters);
      bytes[Bucket::replicated_parameters] += whole;
      bytes[Bucket::sharded_gradients] += whole;
    } else {
      const UnitBytes unit_size = unit_bytes(unit.layout, unit.precision, unit.reduced_once());
      bytes[Bucket::sharded_parameters] += unit_size.sharded_parameters;
      bytes[Bucket::sharded_gradients] += unit_size.sharded_gradients;
    }
    bytes[Bucket::optimizer_state] += unit.optimizer_state_bytes;
  }
  const TransientPeak peak = transient_peak(program, pipeline_rank);
  bytes[Bucket::unsharded_parameters] = peak.unsharded_parameters;
  bytes[Bucket::unsharded_gradients] = peak.unsharded_gradients;
  bytes[Bucket::activations] = peak.activations;
  return predicted;
}

std::vector<ParameterSpec> model_parameters(const ModelConfig& model) {
  Config config;
  config.model = model;
  config.training.sequence_length = 1;
  for (Family family : {Family::dense, Family::experts, Family::embedding, Family::head, Family::root}) {
    config.shard_by_family[family] = {};
  }
  std::vector<ParameterSpec> all;
  for (const auto& segment : make_segments(config, Coordinates{}, 0)) {
    all.insert(all.end(), segment->parameters().begin(), segment->parameters().end());
  }
  return all;
}

ParameterCount count_parameters(const ModelConfig& model) {
  ParameterCount count;
  for (const ParameterSpec& parameter : model_parameters(model)) {
    count.total += parameter.global_size();
    const bool routed = parameter.family == Family::experts;
    count.active += routed ? parameter.global_size() * model.moe.num_experts_per_tok / model.moe.num_experts
                           : parameter.global_size();
  }
  return count;
}

}  // namespace weft
