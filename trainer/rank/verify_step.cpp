#include "trainer/rank/verify_step.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/config/update_groups.h"
#include "trainer/layout/stage_layout.h"

namespace weft {
namespace {

// Size of the largest owner table that a run checks before it begins, in ranks times parameters.
constexpr std::int64_t largest_checked_table = 1'000'000;

DescribedRule rule_of(const ResolvedGroups& groups, const ParameterSpec& parameter) {
  const UpdateRule rule = groups[update_group_of(parameter)].rule;
  return {.name = std::string(name_of(rule)), .whole_matrix = needs_of(rule) == Needs::whole_matrices};
}

// Number of copies of a unit on its stage, without the copies that tensor ranks hold of the same values.
int copies_of(const PlannedUnit& unit, const Degrees& degrees) {
  if (unit.plan.replicated()) return degrees.stage_ranks();
  // Ranks that hold the same boxes of the unit and process different tokens.
  const int holders = unit.plan.family == Family::experts ? degrees.expert_data() : degrees.data() * degrees.context;
  return holders / static_cast<int>(unit.layout.shards);
}

UnitHolder holder_of(const PlannedUnit& unit, const ResolvedGroups& rules, int rank, const Mesh& mesh) {
  const RankSteps shards = mesh.steps(unit.shard_group);
  UnitHolder holder;
  holder.rank = rank;
  holder.group = name_of(unit.shard_group);
  if (!unit.frozen) {
    holder.optimizer_of = [rules](const ParameterSpec& parameter) { return rule_of(rules, parameter).name; };
  }
  if (unit.plan.replicated()) {
    holder.replica = mesh.steps(Group::tokens).place(rank);
    return holder;
  }
  holder.replica = mesh.steps(unit.replicate_group).place(rank);
  // Each rank of the shard group has a copy of a unit kept whole.
  if (unit.layout.shards == 1) holder.replica = holder.replica * shards.count + shards.place(rank);
  // Replicas of a tied weight are numbered stage after stage.
  holder.replica += unit.copy * copies_of(unit, mesh.degrees());
  holder.tensor_rank = mesh.coordinates(rank).tp;
  holder.tensor_ranks = mesh.degrees().tensor;
  return holder;
}

std::vector<OwnedRange> ranges_of(const PlannedUnit& unit, int rank, const UnitHolder& holder, const Mesh& mesh) {
  if (unit.plan.replicated()) return owned_ranges(unit.plan.parameters, holder);
  return owned_ranges(unit.layout, unit.layout.shards == 1 ? 0 : mesh.steps(unit.shard_group).place(rank), holder);
}

DescribedUnit describe_unit(const PlannedUnit& unit, const Config& config, int rank, const Mesh& mesh) {
  const std::vector<int> members = mesh.group_of(unit.shard_group, rank);
  DescribedUnit described;
  described.name = unit.plan.name;
  described.group = name_of(unit.shard_group);
  described.group_ranks = static_cast<int>(members.size());
  described.group_index = mesh.steps(unit.shard_group).place(rank);
  if (unit.plan.replicated()) {
    described.replicated = true;
    described.replicated_parameters = unit.plan.parameters;
    described.reduced_over = members;
  } else {
    described.whole = config.shard_by_family.at(unit.plan.family).strategy == ShardStrategy::no_shard;
    described.layout = unit.layout;
    for (int member : members) {
      const std::vector<int> replicas = mesh.group_of(unit.replicate_group, member);
      described.reduced_over.insert(described.reduced_over.end(), replicas.begin(), replicas.end());
    }
  }
  std::sort(described.reduced_over.begin(), described.reduced_over.end());
  return described;
}

// Elements of routed experts on one rank, by block, computed from the sizes of the model.
std::map<int, std::int64_t> expert_elements(const Config& config) {
  const ModelConfig& model = config.model;
  std::map<int, std::int64_t> elements;
  for (int block = 0; block < std::ssize(model.blocks); ++block) {
    if (model.blocks[block] != BlockKind::moe) continue;
    elements[block] = model.moe.num_experts / config.parallelism.expert * 3 * model.width(block) /
                      config.parallelism.expert_tensor * model.hidden_size;
  }
  return elements;
}

std::vector<DescribedSegment> describe_segments(const Config& config, const PlannedStage& planned) {
  std::map<int, std::int64_t> experts = expert_elements(config);
  std::vector<DescribedSegment> segments;
  for (const auto& segment : planned.segments) {
    const bool routes = segment->part().kind == PartKind::experts;
    segments.push_back(
        {segment->name(), segment->parameters(), routes ? std::exchange(experts[*segment->part().block], 0) : 0});
  }
  return segments;
}

}  // namespace

OwnerTable owner_table(const Config& config, const Mesh& mesh) {
  const ResolvedGroups rules = resolved_groups(config);
  OwnerTable table;
  const auto add = [&](int rank, const PlannedStage& stage, bool) {
    for (const PlannedUnit& unit : stage.units) {
      const auto ranges = ranges_of(unit, rank, holder_of(unit, rules, rank, mesh), mesh);
      table.insert(table.end(), ranges.begin(), ranges.end());
    }
  };
  for (int pp = 0; pp < mesh.degrees().pipeline; ++pp) for_each_stage(config, mesh, pp, add);
  return table;
}

std::vector<GlobalParameter> global_parameters(const Config& config, const Mesh& mesh) {
  std::map<std::string, int> copies;
  const auto count = [&](int, const PlannedStage& stage, bool first) {
    if (!first) return;
    for (const PlannedUnit& unit : stage.units) {
      for (const ParameterSpec& parameter : unit.plan.parameters) {
        const int tensor = !unit.plan.replicated() && parameter.tensor_replicated ? mesh.degrees().tensor : 1;
        copies[parameter.name] = copies_of(unit, mesh.degrees()) * tensor * unit.copies;
      }
    }
  };
  for (int pp = 0; pp < mesh.degrees().pipeline; ++pp) for_each_stage(config, mesh, pp, count);
  // Of the whole model. So a parameter that the layout has lost is still listed.
  std::vector<GlobalParameter> parameters;
  for (const ParameterSpec& parameter : model_parameters(config.model)) {
    const auto found = copies.find(parameter.name);
    parameters.push_back(
        {parameter.name, parameter.global_rows, parameter.global_columns, found == copies.end() ? 1 : found->second});
  }
  return parameters;
}

void require_sound_ownership(const OwnerTable& table, const std::vector<GlobalParameter>& parameters) {
  const auto faults = find_ownership_faults(table, parameters);
  if (faults.empty()) return;
  std::string text;
  for (const OwnershipFault& fault : faults) text += fmt::format("\n  {}: {}", name_of(fault.seam), fault.message);
  fail("the parameters are not owned soundly:{}", text);
}

StageDescription describe_stage(const Config& config, const Mesh& mesh, int rank, const PlannedStage& planned,
                                std::optional<std::vector<OwnedRange>> stepped) {
  const Coordinates at = mesh.coordinates(rank);
  const ResolvedGroups rules = resolved_groups(config);
  StageDescription description;
  description.rank = rank;
  description.stage = planned.stage;
  description.segments = describe_segments(config, planned);
  for (const PlannedUnit& unit : planned.units) {
    description.units.push_back(describe_unit(unit, config, rank, mesh));
  }
  const std::vector<StageBlocks> layout = stage_layout(config);
  for (int stage = 0; stage < config.stages(); ++stage) {
    for (const auto& segment : plan_stage(config, mesh, at, stage, layout).segments) {
      for (const ParameterSpec& parameter : segment->parameters()) {
        // A tied weight belongs to several stages; `planned.stage` takes precedence.
        if (stage == planned.stage) description.stage_of_parameter[parameter.name] = stage;
        description.stage_of_parameter.try_emplace(parameter.name, stage);
        if (stage != planned.stage) continue;
        description.formed_from.push_back(parameter);
        description.rule_of_parameter[parameter.name] = rule_of(rules, parameter);
      }
    }
  }
  for (int other = 0; other < mesh.world(); ++other) {
    const Coordinates place = mesh.coordinates(other);
    if (place.pp != at.pp) continue;
    description.stage_ranks.push_back(other);
    if (place.tp == at.tp) description.dense_holders.push_back(other);
    if (place.ep == at.ep && place.etp == at.etp) description.expert_holders.push_back(other);
  }
  description.stepped = std::move(stepped);
  return description;
}

void verify_step(const Config& config, const Mesh& mesh, int rank, RankStages& stages) {
  std::size_t unit = 0;
  for (const PlannedStage& stage : stages.planned()) {
    std::vector<OwnedRange> stepped;
    for (const std::size_t end = unit + stage.units.size(); unit < end; ++unit) {
      for (const OwnedRows& rows : stages.owned_rows(unit)) {
        OwnedRange range;
        range.parameter = rows.parameter->name;
        range.rank = rank;
        range.row_begin = rows.row_begin;
        range.rows = rows.rows;
        range.column_begin = rows.parameter->column_begin;
        range.columns = rows.parameter->columns;
        stepped.push_back(std::move(range));
      }
    }
    verify_sharding(describe_stage(config, mesh, rank, stage, std::move(stepped)));
  }
  if (rank != 0) return;
  const auto parameters = global_parameters(config, mesh);
  if (std::ssize(parameters) * mesh.world() > largest_checked_table) return;
  require_sound_ownership(owner_table(config, mesh), parameters);
}

}  // namespace weft
