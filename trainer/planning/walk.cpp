#include "trainer/planning/walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "parallel/pipeline/accounts/accounts.h"
#include "parallel/runtime/error.h"
#include "trainer/costs/hardware.h"
#include "trainer/costs/topology.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// Kinds of actions that are the same in every mesh.
constexpr std::pair<Op, WalkKind> kinds_by_op[] = {
    {Op::scatter_gradient, WalkKind::scatter},  {Op::tie_gradient, WalkKind::tie},
    {Op::wait_reduction, WalkKind::wait},       {Op::offload, WalkKind::offload},
    {Op::wait_offload, WalkKind::wait_offload}, {Op::reload, WalkKind::reload},
    {Op::gradient_norm, WalkKind::norm},        {Op::optimizer_step, WalkKind::step}};

// Converts one action to a line.
class Teller {
 public:
  Teller(const Program& program, const Mesh& mesh, int rank) : program_(program), mesh_(mesh), rank_(rank) {}

  WalkLine line_of(const Action& action) const {
    WalkLine line{.kind = kind_of(action),
                  .op = action.op,
                  .stage = action.stage,
                  .microbatch = action.microbatch,
                  .unit = action.unit,
                  .peer = action.peer};
    for (const ProgramCollective& part : collectives_of(program_, action)) {
      const std::int64_t sent = sent_bytes(part.op, part.bytes, ranks_of(part.group, action));
      line.sent += sent;
      line.is_bound |= part.is_bound && sent > 0;
    }
    if (action.unit) line.subject = unit_of(action).name;
    if (action.segment) {
      const ProgramSegment& segment = program_.segments[static_cast<std::size_t>(*action.segment)];
      line.subject = segment.name;
      line.block = segment.part.block;
    }
    return line;
  }

  WalkKind kind_of(const Action& action) const {
    if (is_compute(action.op)) return WalkKind::compute;
    if (is_send(action.op) || is_receive(action.op)) return WalkKind::message;
    if (is_gather(action.op) || is_reshard(action.op)) return residency_kind(action);
    if (is_row_exchange(action.op)) return WalkKind::rows;
    const auto found = std::ranges::find(kinds_by_op, action.op, &std::pair<Op, WalkKind>::first);
    if (found != std::end(kinds_by_op)) return found->second;
    if (travels(action, CollectiveOp::reduce_scatter)) return WalkKind::reduce_scatter;
    return travels(action, CollectiveOp::all_reduce) ? WalkKind::all_reduce : WalkKind::add;
  }

 private:
  const ProgramUnit& unit_of(const Action& action) const {
    return program_.units[static_cast<std::size_t>(*action.unit)];
  }

  std::int64_t ranks_of(Group group, const Action& action) const {
    if (group == Group::tied) return std::ssize(tied_ranks(program_, unit_of(action)));
    if (group == Group::dp_island || group == Group::edp_island) return unit_of(action).policy.island_ranks;
    return static_cast<std::int64_t>(mesh_.group_of(group, rank_).size());
  }

  bool travels(const Action& action, CollectiveOp op) const {
    // Partial sums of norm weights over tensor ranks precede the reduction and do not count as it.
    return std::ranges::any_of(collectives_of(program_, action), [&](const ProgramCollective& part) {
      return part.op == op && part.group != Group::tp && ranks_of(part.group, action) > 1;
    });
  }

  WalkKind residency_kind(const Action& action) const {
    if (unit_of(action).unsharded_bytes == 0) return WalkKind::in_place;
    if (action.op == Op::unshard_secondary) return WalkKind::gather_island;
    if (action.op == Op::reshard_secondary) return WalkKind::keep_part;
    if (action.op == Op::reshard) return WalkKind::free;
    return travels(action, CollectiveOp::all_gather) ? WalkKind::gather : WalkKind::copy;
  }

  const Program& program_;
  const Mesh& mesh_;
  int rank_;
};

bool same_block(const WalkLine& one, const WalkLine& other) {
  return one.kind == WalkKind::compute && one.op == other.op && one.stage == other.stage &&
         one.microbatch == other.microbatch && one.block && one.block == other.block;
}

// Appends `next` to `line`, its predecessor.
void append(WalkLine& line, const WalkLine& next) {
  line.subject = fmt::format("blocks.{}", *line.block);
  line.actions += next.actions;
  line.sent += next.sent;
  line.is_bound |= next.is_bound;
  line.live = next.live;
  line.parameters_peak = next.parameters_peak;
  line.gradients_peak = next.gradients_peak;
  line.total_peak = next.total_peak;
}

}  // namespace

std::int64_t sent_bytes(CollectiveOp op, std::int64_t payload, std::int64_t ranks) {
  if (ranks <= 1) return 0;
  return std::llround(std::ceil(ring_bytes(op, static_cast<double>(payload), static_cast<int>(ranks))));
}

WalkKind kind_of(const Program& program, const Mesh& mesh, int rank, const Action& action) {
  return Teller(program, mesh, rank).kind_of(action);
}

std::vector<WalkLine> walk(const Program& program, const Mesh& mesh, int rank, const WalkState& state, bool segments) {
  const int pipeline_rank = mesh.coordinates(rank).pp;
  const std::vector<Action>& actions = program.ranks.at(static_cast<std::size_t>(pipeline_rank));
  const std::vector<LiveAction> live = live_bytes(program, pipeline_rank);
  const Teller teller(program, mesh, rank);
  std::vector<WalkLine> lines;
  std::int64_t parameters = 0, gradients = 0, total = state.all_step;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    WalkLine line = teller.line_of(actions[i]);
    line.first = i;
    line.live = live[i].after;
    line.parameters_peak = parameters = std::max(parameters, live[i].most[Bucket::unsharded_parameters]);
    line.gradients_peak = gradients = std::max(gradients, live[i].most[Bucket::unsharded_gradients]);
    const std::int64_t update = line.op == Op::optimizer_step ? state.update : 0;
    line.total_peak = total = std::max(total, state.all_step + std::max(live[i].most_total, update));
    if (!segments && !lines.empty() && same_block(lines.back(), line)) {
      append(lines.back(), line);
    } else {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

WalkSummary summarize(std::span<const WalkLine> lines, const WalkState& state) {
  WalkSummary summary{.state = state.all_step, .total_peak = state.all_step};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const WalkLine& line = lines[i];
    const bool gather = is_gather(line.kind), reduction = is_reduction(line.kind);
    summary.gathers += gather;
    summary.island_gathers += line.kind == WalkKind::gather_island;
    summary.reductions += reduction;
    summary.sent += line.sent;
    if (gather) summary.sent_by_gathers += line.sent;
    if (reduction) summary.sent_by_reductions += line.sent;
    summary.is_bound |= line.is_bound;
    summary.parameters_peak = line.parameters_peak;
    summary.gradients_peak = line.gradients_peak;
    if (line.total_peak > summary.total_peak) summary.peak_line = i;
    summary.total_peak = line.total_peak;
  }
  return summary;
}

WalkedStep walk_step(const Config& given, int pipeline_rank, bool segments) {
  const ResolvedRun run(on_hardware(given));
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  if (pipeline_rank < 0 || pipeline_rank >= config.parallelism.pipeline) {
    fail_request("pipeline rank {} is not one of the {} of parallelism.pipeline", pipeline_rank,
                 config.parallelism.pipeline);
  }
  WalkedStep step{.mesh = mesh, .rank = mesh.rank_at(pipeline_rank, 0, 0, 0, 0)};
  const Coordinates at = mesh.coordinates(step.rank);
  step.program = step_program(run, at);
  step.state = static_bytes(plan_stages(config, mesh, at));
  const WalkState state{step.state.total(), update_bytes(config, mesh, at).total()};
  step.lines = walk(step.program, mesh, step.rank, state, segments);
  step.summary = summarize(step.lines, state);
  step.byte_steps = live_integral(step.program, pipeline_rank).byte_steps;
  return step;
}

}  // namespace weft
