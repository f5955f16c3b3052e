// The tables of a program, from the planned stages.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "parallel/shard/replicated.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

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
  ProgramUnit entry{.name = unit.plan.name,
                    .family = unit.plan.family,
                    .stage = stage,
                    .replicated = unit.plan.replicated(),
                    .frozen = unit.frozen,
                    .group = unit.shard_group,
                    .policy = unit.policy};
  if (entry.replicated) {
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
  if (unit.copies > 1) {
    entry.tied_unreduced = unit.ties_unreduced();
    entry.tie_bytes =
        (entry.tied_unreduced ? unit.layout.unsharded_size() : unit.layout.shard_size) * size_of(DType::float32);
  }
  entry.reduce_bytes = unit.layout.unsharded_size() * size_of(unit.precision.reduction);
  add_reduction(unit, entry);
  return entry;
}

// `copies`: the units with copies of one parameter, as indices into the program's table.
void tie_units(ProgramTables& tables, const std::vector<int>& copies) {
  for (const int copy : copies) {
    ProgramUnit& unit = tables.units[copy];
    unit.copies = copies;
    const std::vector<int> here = copies_on_rank(tables, unit, tables.stages[unit.stage].rank);
    // A rank's first copy takes part for all of them.
    if (tied_ranks(tables, unit).size() < 2 || here.front() != copy) {
      unit.tie_bytes = 0;
    } else {
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

// Enters the kept bytes into the program's entries of the stage's segments, with the collectives of R (recompute).
// These are those of the forward except the ones done once. `first_segment`: index of the stage's first segment in the
// program's table.
void add_regions(const std::vector<KeptBySegment>& kept, int first_segment, std::span<ProgramSegment> entries) {
  for (std::size_t s = 0; s < kept.size(); ++s) {
    if (!kept[s].region) continue;
    entries[s].region = first_segment + *kept[s].region;
    entries[s].checkpoint_bytes = kept[s].bytes;
    std::vector<ProgramCollective>& collectives = entries[s].collectives;
    for (std::size_t i = 0, count = collectives.size(); i < count; ++i) {
      ProgramCollective again = collectives[i];
      if (again.during != Op::forward || again.once) continue;
      again.during = Op::recompute;
      collectives.push_back(again);
    }
  }
}

// Chooses the segments with kept bytes that wait in host memory. The foremost come first, since their bytes wait
// longest, until they have `fraction` of the stage's bytes that may. A region has its input, kept by the first segment.
void choose_offloaded(double fraction, const std::vector<KeptBySegment>& kept, std::span<ProgramSegment> entries) {
  double all = 0.0;
  for (const KeptBySegment& each : kept) all += static_cast<double>(each.may_leave);
  std::int64_t chosen = 0;
  for (std::size_t s = 0; s < entries.size() && static_cast<double>(chosen) < fraction * all; ++s) {
    chosen += entries[s].offload_bytes = kept[s].may_leave;
  }
}

}  // namespace

std::vector<KeptBySegment> kept_by_segments(const Config& config, const PlannedBoundary& boundary,
                                            const PlannedStage& stage) {
  std::vector<KeptBySegment> kept;
  for (std::size_t s = 0; s < stage.segments.size(); ++s) {
    const Segment& segment = *stage.segments[s];
    const std::optional<int> block = segment.part().block;
    const SegmentBytes even = segment.even_bytes();
    if (!block || !config.recomputes(*block) || !segment.recomputes_forward()) {
      kept.push_back({{}, segment.activation_bytes(), even.activations, segment.offload_bytes()});
      continue;
    }
    const bool begins = s == 0 || !kept.back().region || stage.segments[s - 1]->scope() != segment.scope();
    const std::int64_t input = begins ? boundary.bytes() : 0;
    kept.push_back({.region = begins ? static_cast<int>(s) : *kept.back().region,
                    .bytes = input + segment.remembered_bytes(),
                    .even = input + even.remembered,
                    .may_leave = input});
  }
  return kept;
}

ProgramTables stage_tables(const Config& config, const PlannedBoundary& boundary,
                           const std::function<PlannedStage(int stage)>& plan) {
  ProgramTables tables;
  const std::vector<int> ranks = stage_ranks(config);
  std::map<std::string, std::vector<int>> ties;  // units with copies, by parameter
  for (int s = 0; s < config.stages(); ++s) {
    const PlannedStage planned = plan(s);
    ProgramStage stage{.rank = ranks[s], .output_bytes = boundary.bytes()};
    const int first_unit = static_cast<int>(tables.units.size());
    for (const PlannedUnit& unit : planned.units) {
      if (unit.copies > 1 && !unit.frozen) {
        ties[unit.plan.parameters.front().name].push_back(static_cast<int>(tables.units.size()));
      }
      tables.units.push_back(program_unit(unit, s));
    }
    const auto unit_of = unit_by_parameter(planned);
    for (const auto& segment : planned.segments) {
      ProgramSegment entry{.name = segment->name(),
                           .part = segment->part(),
                           .stage = s,
                           .reads_weights_backward = segment->reads_weights_backward(),
                           .activation_bytes = segment->activation_bytes(),
                           .pending_bytes = segment->pending_bytes()};
      std::set<int> used;
      for (const ParameterSpec& parameter : segment->parameters()) used.insert(unit_of.at(parameter.name));
      for (int unit : used) entry.units.push_back(first_unit + unit);
      for (const SegmentTraffic& traffic : segment->traffic()) {
        if (traffic.count == 0) continue;
        constexpr Op ops[] = {Op::forward, Op::backward_input, Op::backward_weight};  // by SegmentTraffic::When
        const auto timed =
            static_cast<std::int64_t>(config.hardware.expert_load * static_cast<double>(traffic.even_bytes));
        entry.collectives.push_back({ops[static_cast<std::size_t>(traffic.when)], traffic.op, traffic.group,
                                     traffic.count, traffic.bytes, traffic.is_bound, std::min(timed, traffic.bytes),
                                     traffic.once, traffic.beside});
      }
      stage.segments.push_back(static_cast<int>(tables.segments.size()));
      tables.segments.push_back(std::move(entry));
    }
    const std::size_t first_segment = tables.segments.size() - planned.segments.size();
    const auto entries = std::span(tables.segments).subspan(first_segment);
    const std::vector<KeptBySegment> kept = kept_by_segments(config, boundary, planned);
    add_regions(kept, static_cast<int>(first_segment), entries);
    choose_offloaded(config.training.offload, kept, entries);
    tables.stages.push_back(std::move(stage));
  }
  for (const auto& [parameter, units] : ties) tie_units(tables, units);
  return tables;
}

}  // namespace weft
