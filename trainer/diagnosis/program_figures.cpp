#include "trainer/diagnosis/program_figures.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "parallel/pipeline/simulation/cost_model.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

std::vector<WholeStageUnit> whole_stage_units(const Program& program) {
  // The blocks that read each unit with parameters of blocks, by stage and by whether it has experts.
  std::map<std::pair<int, bool>, std::map<int, std::set<int>>> blocks_of_units;
  for (const ProgramSegment& segment : program.segments) {
    if (!segment.part.block) continue;
    for (const int index : segment.units) {
      const ProgramUnit& unit = program.units[index];
      if (unit.replicated || unit.gather_bytes == 0) continue;
      blocks_of_units[{unit.stage, unit.family == Family::experts}][index].insert(*segment.part.block);
    }
  }
  std::vector<WholeStageUnit> whole;
  for (const auto& [kind, units] : blocks_of_units) {
    const auto& [index, blocks] = *units.begin();
    if (units.size() > 1 || blocks.size() < 2) continue;
    const ProgramUnit& unit = program.units[index];
    whole.push_back({index, unit.name, unit.family, static_cast<int>(std::ssize(blocks)), unit.gather_bytes});
  }
  return whole;
}

// Adds the figures of one rank, which stands for `times` ranks.
void add_rank(const Program& program, const Config& config, const Mesh& mesh, int rank, std::int64_t times,
              ProgramFigures& figures) {
  const int pipeline_rank = mesh.coordinates(rank).pp;
  const auto& actions = program.ranks[pipeline_rank];
  const GroupSizes sizes = group_sizes(mesh);
  std::set<int> gathered_units;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!action.unit || !(is_gather(action.op) || is_reduction(action.op))) continue;
    const ProgramUnit& unit = program.units[*action.unit];
    bool moves = false;
    for (const ProgramCollective& part : unit.collectives) {
      // Partial sums over tensor ranks are counted with the exchanges of segments.
      if (part.during != action.op || part.group == Group::tp) continue;
      const bool island = part.group == Group::dp_island || part.group == Group::edp_island;
      const int ranks = island ? unit.policy.island_ranks : sizes.at(part.group);
      if (ranks == 1) continue;
      CommunicationCount& count = figures.exchange[{std::string(name_of(part.group)), part.op}];
      count.count += times;
      count.bytes += times * part.bytes;
      moves = true;
      if (is_gather(action.op)) figures.shard_ranks = std::max(figures.shard_ranks, ranks);
    }
    if (!moves || is_reduction(action.op)) continue;
    figures.gathers += times;
    figures.gather_bytes += times * unit.gather_bytes;
    figures.gathered_elements += times * unit.gather_bytes / size_of(config.precision_of(unit.family).compute);
    if (is_late_gather(program, actions, i)) figures.late_gathers += times;
    gathered_units.insert(*action.unit);
  }
  figures.gathered_units += times * std::ssize(gathered_units);
}

}  // namespace

bool is_late_gather(const Program& program, const std::vector<Action>& actions, std::size_t at) {
  const auto computes = [](const Action& action) { return is_compute(action.op); };
  const auto gather = actions.begin() + static_cast<std::ptrdiff_t>(at);
  if (std::none_of(actions.begin(), gather, computes)) return false;
  const auto next = std::find_if(gather, actions.end(), computes);
  return next != actions.end() && reads_unit(program, *next, *actions[at].unit);
}

bool reads_unit(const Program& program, const Action& action, int unit) {
  if (!is_compute(action.op) || !action.segment) return false;
  const ProgramSegment& segment = program.segments[*action.segment];
  return reads_units(segment, action.op) && std::ranges::find(segment.units, unit) != segment.units.end();
}

ProgramFigures program_figures(const ResolvedRun& run) {
  ProgramFigures figures;
  StepPrograms programs(run);
  figures.whole_stage_units = whole_stage_units(programs.of_first_rank());
  for (const RankClass& ranks : rank_classes(run.config(), run.mesh())) {
    add_rank(programs.of(ranks.at), run.config(), run.mesh(), ranks.first, ranks.ranks, figures);
  }
  figures.peak_bytes = fullest_peak(programs).total();
  return figures;
}

}  // namespace weft
