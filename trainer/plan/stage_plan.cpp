#include "trainer/plan/stage_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "layers/context_parallel.h"
#include "layers/segments.h"
#include "parallel/shard/replicated.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/state_layout.h"
#include "trainer/plan/unit_policy.h"

namespace weft {
namespace {

PlannedUnit plan_unit(const Config& config, const Mesh& mesh, int stage, UnitPlan plan) {
  PlannedUnit unit;
  unit.policy = resolve_policy(config, plan.family, stage);
  unit.frozen = config.training.frozen.contains(plan.family);
  unit.plan = std::move(plan);
  if (unit.plan.replicated()) {
    unit.shard_group = unit.replicate_group = Group::tokens;
    if (!unit.frozen) unit.optimizer_state_bytes = state_bytes(resolved_groups(config), unit);
    return unit;
  }
  const Family family = unit.plan.family;
  unit.precision = unit_precision(config, family);
  unit.shard_group = shard_group(mesh.degrees(), family);
  if (family == Family::experts) {
    unit.replicate_group = Group::edp_replicate;
    unit.island_group = Group::edp_island;
  }
  const bool whole = config.shard_by_family.at(family).strategy == ShardStrategy::no_shard;
  unit.layout = lay_out_unit(unit.plan.parameters, whole ? 1 : shard_ranks(mesh.degrees(), family));
  if (!unit.frozen) unit.optimizer_state_bytes = state_bytes(resolved_groups(config), unit);
  return unit;
}

// Adds the collectives of the unit's reductions.
void add_reduction(const PlannedUnit& unit, ProgramUnit& entry) {
  const UnitSetup setup = unit.setup();
  const std::int64_t partial = setup.layout.tensor_replicated_size() * size_of(DType::float32);
  const std::int64_t part = entry.reduce_bytes / setup.layout.shards;
  const auto sum = setup.whole() ? CollectiveOp::all_reduce : CollectiveOp::reduce_scatter;
  for (const Op op : {Op::scatter_gradient, Op::reduce_gradient}) {
    if (op == Op::scatter_gradient && !setup.accumulate_sharded) continue;
    if (partial > 0) entry.collectives.push_back({op, CollectiveOp::all_reduce, Group::tp, 1, partial});
    entry.collectives.push_back({op, sum, unit.shard_group, 1, entry.reduce_bytes});
  }
  entry.collectives.push_back({Op::reduce_gradient, CollectiveOp::all_reduce, unit.replicate_group, 1, part});
}

ProgramUnit program_unit(const PlannedUnit& unit, int stage) {
  ProgramUnit entry;
  entry.name = unit.plan.name;
  entry.family = unit.plan.family;
  entry.stage = stage;
  entry.group = unit.shard_group;
  entry.policy = unit.policy;
  entry.frozen = unit.frozen;
  if (unit.plan.replicated()) {
    entry.replicated = true;
    if (unit.frozen) return entry;
    entry.reduce_bytes = entry.gradient_bytes = ReplicatedParameters::bytes(unit.plan.parameters);
    entry.collectives.push_back({Op::reduce_gradient, CollectiveOp::all_reduce, Group::tokens, 1, entry.reduce_bytes});
    return entry;
  }
  const UnitBytes bytes = unit_bytes(unit.setup());
  entry.unsharded_bytes = bytes.unsharded_parameters;
  entry.island_bytes = bytes.island_parameters;
  entry.gradient_bytes = bytes.unsharded_gradients;
  entry.reduce_input_bytes = bytes.reduce_input;
  entry.reduce_part_bytes = bytes.reduce_part;
  if (unit.layout.shards > 1) {
    entry.gather_bytes = bytes.unsharded_parameters;
    entry.collectives.push_back({Op::unshard, CollectiveOp::all_gather, unit.shard_group, 1, entry.gather_bytes});
  }
  if (unit.policy.island_ranks > 0) {
    entry.collectives.push_back(
        {Op::unshard_secondary, CollectiveOp::all_gather, unit.island_group, 1, entry.gather_bytes});
  }
  if (unit.frozen) return entry;
  entry.reduce_bytes = unit.layout.unsharded_size() * size_of(unit.precision.reduction);
  add_reduction(unit, entry);
  return entry;
}

// Parameters that segments of a stage declare, each once: embedding and head of one stage share a tied weight.
std::vector<ScopedParameters> pieces_of(std::span<const std::unique_ptr<Segment>> segments) {
  std::vector<ScopedParameters> pieces;
  std::set<std::string_view> declared;
  for (const auto& segment : segments) {
    ScopedParameters& piece = pieces.emplace_back(segment->scope(), std::vector<ParameterSpec>(), segment->name());
    for (const ParameterSpec& parameter : segment->parameters()) {
      const bool shared = parameter.family == Family::embedding && declared.contains(parameter.name);
      if (!shared) piece.parameters.push_back(parameter);
      declared.insert(parameter.name);
    }
  }
  return pieces;
}

TiedCopy tied_copy(const Config& config, const StageBlocks& blocks) {
  if (!config.model.tie_word_embeddings) return TiedCopy::none;
  if (blocks.embedding == blocks.head) return TiedCopy::none;  // neither, or both in one unit
  return blocks.embedding ? TiedCopy::of_embedding : TiedCopy::of_head;
}

// One of the two units with a copy of a tied weight; `unit` is an index into the program's table.
struct TiedUnit {
  std::size_t unit = 0;
  bool unreduced = false;
  std::int64_t gradient_bytes = 0;  // of the gradient that TIE_GRAD sums
};

TiedUnit tied_unit(const PlannedUnit& unit, std::size_t index) {
  const std::int64_t elements = unit.ties_unreduced() ? unit.layout.unsharded_size() : unit.layout.shard_size;
  return {index, unit.ties_unreduced(), elements * size_of(DType::float32)};
}

void tie_units(ProgramTables& tables, const std::vector<TiedUnit>& ties) {
  for (const TiedUnit& one : ties) {
    for (const TiedUnit& other : ties) {
      if (&one == &other) continue;
      ProgramUnit& unit = tables.units[one.unit];
      unit.tied_to = static_cast<int>(other.unit);
      unit.tied_unreduced = one.unreduced;
      if (tied_rank(tables, unit) == tables.stages[static_cast<std::size_t>(unit.stage)].rank) continue;
      unit.tie_bytes = one.gradient_bytes;
      unit.collectives.push_back({Op::tie_gradient, CollectiveOp::all_reduce, Group::tied, 1, unit.tie_bytes});
    }
  }
}

// The unit of the stage that holds each parameter, by parameter name.
std::map<std::string_view, int> unit_by_parameter(const PlannedStage& stage) {
  std::map<std::string_view, int> units;
  for (std::size_t u = 0; u < stage.units.size(); ++u) {
    for (const ParameterSpec& parameter : stage.units[u].plan.parameters) units[parameter.name] = static_cast<int>(u);
  }
  return units;
}

void add_static_bytes(const PlannedUnit& unit, BucketBytes& bytes) {
  if (unit.plan.replicated()) {
    const std::int64_t whole = ReplicatedParameters::bytes(unit.plan.parameters);
    bytes[Bucket::replicated_parameters] += whole;
    if (!unit.frozen) bytes[Bucket::sharded_gradients] += whole;
  } else {
    const UnitBytes unit_size = unit_bytes(unit.setup());
    bytes[Bucket::sharded_parameters] += unit_size.sharded_parameters;
    bytes[Bucket::sharded_gradients] += unit_size.sharded_gradients;
  }
  bytes[Bucket::optimizer_state] += unit.optimizer_state_bytes;
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

SegmentSetup segment_setup(const Config& config, const Coordinates& at) {
  SegmentSetup setup;
  setup.model = config.model;
  setup.compute = config.precision_of(Family::dense).compute;
  setup.embedding_compute = config.precision_of(Family::embedding).compute;
  setup.expert_compute = config.precision_of(Family::experts).compute;
  setup.head_compute = config.precision_of(Family::head).compute;
  for (const Family family : {Family::dense, Family::experts}) {
    setup.formats[family] = product_format(config, family);
  }
  setup.recompute_cheap = config.training.recompute == Recompute::selective;
  setup.frozen = config.training.frozen;
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
  return setup;
}

std::vector<std::unique_ptr<Segment>> make_segments(const Config& config, const SegmentSetup& setup, int stage,
                                                    const StageBlocks& blocks, const SegmentMakers& makers) {
  std::vector<std::unique_ptr<Segment>> segments;
  if (blocks.embedding) segments.push_back(make_embedding(setup));
  for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
    segments.push_back(makers.attention(setup, block));
    const bool dense = config.model.blocks[static_cast<std::size_t>(block)] == BlockKind::dense;
    segments.push_back(dense ? make_mlp(setup, block) : make_moe(setup, block));
  }
  if (blocks.head) segments.push_back(makers.head(setup));
  if (segments.empty()) segments.push_back(make_identity_segment(stage));
  return segments;
}

PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage,
                        const std::vector<StageBlocks>& layout) {
  const StageBlocks& blocks = layout[static_cast<std::size_t>(stage)];
  return plan_stage(config, mesh, stage, blocks, make_segments(config, segment_setup(config, at), stage, blocks));
}

PlannedStage plan_stage(const Config& config, const Mesh& mesh, int stage, const StageBlocks& blocks,
                        std::vector<std::unique_ptr<Segment>> segments) {
  PlannedStage planned;
  planned.stage = stage;
  planned.segments = std::move(segments);
  const TiedCopy tied = tied_copy(config, blocks);
  for (UnitPlan& plan : form_units(pieces_of(planned.segments), stage, wrap_rules(config, stage))) {
    planned.units.push_back(plan_unit(config, mesh, stage, std::move(plan)));
    if (planned.units.back().plan.family == Family::embedding) planned.units.back().tied = tied;
  }
  return planned;
}

std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at,
                                      const std::vector<StageBlocks>& layout) {
  std::vector<PlannedStage> stages;
  for (const int stage : stages_of_rank(config, at.pp)) stages.push_back(plan_stage(config, mesh, at, stage, layout));
  return stages;
}

PlannedInputs plan_inputs(const Config& config, const Coordinates& at) {
  PlannedInputs inputs;
  inputs.rotary.heads.head_dim = config.model.head_dim;
  inputs.rotary.heads.sequence_length = config.training.sequence_length / config.parallelism.context;
  inputs.rotary.theta = config.model.rope_theta;
  inputs.positions = context_runs(config.training.sequence_length, config.parallelism.context, at.cp);
  inputs.microbatch_tokens = config.microbatch_tokens() / config.parallelism.context;
  inputs.boundary = {config.precision_of(Family::dense).compute, inputs.microbatch_tokens / config.parallelism.tensor,
                     config.model.hidden_size};
  return inputs;
}

ProgramTables stage_tables(const Config& config, const PlannedBoundary& boundary,
                           const std::function<PlannedStage(int stage)>& plan) {
  ProgramTables tables;
  const std::vector<int> ranks = stage_ranks(config);
  std::vector<TiedUnit> ties;
  const std::int64_t boundary_bytes = boundary.bytes();
  for (int s = 0; s < config.stages(); ++s) {
    const PlannedStage planned = plan(s);
    ProgramStage stage;
    stage.rank = ranks[static_cast<std::size_t>(s)];
    stage.output_bytes = boundary_bytes;
    const int first_unit = static_cast<int>(tables.units.size());
    for (const PlannedUnit& unit : planned.units) {
      const bool tied = unit.tied != TiedCopy::none && !unit.frozen;
      if (tied) ties.push_back(tied_unit(unit, tables.units.size()));
      tables.units.push_back(program_unit(unit, s));
    }
    const auto unit_of = unit_by_parameter(planned);
    for (const auto& segment : planned.segments) {
      ProgramSegment entry;
      entry.name = segment->name();
      entry.part = segment->part();
      entry.stage = s;
      entry.reads_weights_backward = segment->reads_weights_backward();
      entry.activation_bytes = segment->activation_bytes();
      entry.pending_bytes = segment->pending_bytes();
      std::set<int> used;
      for (const ParameterSpec& parameter : segment->parameters()) used.insert(unit_of.at(parameter.name));
      for (int unit : used) entry.units.push_back(first_unit + unit);
      for (const SegmentTraffic& traffic : segment->traffic()) {
        if (traffic.count == 0) continue;
        entry.collectives.push_back({op_of(traffic.when), traffic.op, traffic.group, traffic.count, traffic.bytes,
                                     traffic.is_bound, traffic.even_bytes, traffic.once});
      }
      stage.segments.push_back(static_cast<int>(tables.segments.size()));
      tables.segments.push_back(std::move(entry));
    }
    const std::size_t first_segment = tables.segments.size() - planned.segments.size();
    add_regions(kept_by_segments(config, boundary, planned), static_cast<int>(first_segment),
                std::span(tables.segments).subspan(first_segment));
    tables.stages.push_back(std::move(stage));
  }
  tie_units(tables, ties);
  return tables;
}

bool PredictedMemory::is_static(Bucket bucket) {
  return bucket == Bucket::sharded_parameters || bucket == Bucket::replicated_parameters ||
         bucket == Bucket::sharded_gradients || bucket == Bucket::optimizer_state;
}

std::vector<Bucket> differing_static_buckets(const BucketBytes& predicted, const BucketBytes& measured) {
  std::vector<Bucket> differing;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    const auto bucket = static_cast<Bucket>(b);
    if (PredictedMemory::is_static(bucket) && predicted[bucket] != measured[bucket]) differing.push_back(bucket);
  }
  return differing;
}

BucketBytes static_bytes(std::span<const PlannedStage> stages) {
  BucketBytes bytes;
  for (const PlannedStage& stage : stages) {
    for (const PlannedUnit& unit : stage.units) add_static_bytes(unit, bytes);
  }
  return bytes;
}

std::vector<ParameterSpec> model_parameters(const ModelConfig& model) {
  Config config;
  config.model = model;
  config.training.sequence_length = 1;
  for (Family family : {Family::dense, Family::experts, Family::embedding, Family::head, Family::root}) {
    config.shard_by_family[family] = {};
  }
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
    count.total += parameter.global_size();
    const bool routed = parameter.family == Family::experts;
    count.active += routed ? parameter.global_size() * model.moe.num_experts_per_tok / model.moe.num_experts
                           : parameter.global_size();
  }
  return count;
}

}  // namespace weft
