#include "trainer/diagnosis/program_figures.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "parallel/runtime/refusal.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// The size of each group that a rank is in.
class GroupRanks {
 public:
  GroupRanks(const Mesh& mesh, int rank) : mesh_(mesh), rank_(rank) {}

  int of(Group group, const ProgramUnit& unit) {
    if (group == Group::dp_island || group == Group::edp_island) return unit.policy.island_ranks;
    const auto [found, fresh] = ranks_.try_emplace(group, 1);
    if (fresh) found->second = static_cast<int>(mesh_.group_of(group, rank_).size());
    return found->second;
  }

 private:
  const Mesh& mesh_;
  int rank_;
  std::map<Group, int> ranks_;
};

// Units with parameters of blocks, by stage and by whether they are experts, and the blocks that read them.
using BlocksOfUnits = std::map<std::pair<int, bool>, std::map<int, std::set<int>>>;

BlocksOfUnits blocks_of_units(const Program& program) {
  BlocksOfUnits blocks;
  for (const ProgramSegment& segment : program.segments) {
    if (!segment.part.block) continue;
    for (const int index : segment.units) {
      const ProgramUnit& unit = program.units[static_cast<std::size_t>(index)];
      if (unit.replicated || unit.gather_bytes == 0) continue;
      blocks[{unit.stage, unit.family == Family::experts}][index].insert(*segment.part.block);
    }
  }
  return blocks;
}

std::vector<WholeStageUnit> whole_stage_units(const Program& program) {
  std::vector<WholeStageUnit> whole;
  for (const auto& [kind, units] : blocks_of_units(program)) {
    const auto& [index, blocks] = *units.begin();
    if (units.size() > 1 || blocks.size() < 2) continue;
    const ProgramUnit& unit = program.units[static_cast<std::size_t>(index)];
    whole.push_back(
        {index, unit.name, unit.family, unit.stage, static_cast<int>(std::ssize(blocks)), unit.gather_bytes});
  }
  return whole;
}

// Adds the figures of one rank, which stands for `times` ranks.
void add_rank(const Program& program, const Config& config, const Mesh& mesh, int rank, std::int64_t times,
              ProgramFigures& figures) {
  const int pipeline_rank = mesh.coordinates(rank).pp;
  const auto& actions = program.ranks[static_cast<std::size_t>(pipeline_rank)];
  GroupRanks group_ranks(mesh, rank);
  std::set<int> gathered_units;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!action.unit || !(is_gather(action.op) || is_reduction(action.op))) continue;
    const ProgramUnit& unit = program.units[static_cast<std::size_t>(*action.unit)];
    bool moves = false;
    for (const ProgramCollective& part : unit.collectives) {
      // Partial sums over tensor ranks are counted with the exchanges of segments.
      const bool counts = part.during == action.op && part.group != Group::tp;
      const int ranks = counts ? group_ranks.of(part.group, unit) : 1;
      if (ranks == 1) continue;
      CommunicationCount& count = figures.exchange[{std::string(name_of(part.group)), part.op}];
      count.count += times;
      count.bytes += times * part.bytes;
      moves = true;
      if (is_gather(action.op)) figures.shard_ranks = std::max(figures.shard_ranks, ranks);
    }
    if (!moves) continue;
    if (is_reduction(action.op)) continue;
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
  if (!reads_parameters(action.op) || !action.segment) return false;
  const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*action.segment)];
  if (action.op != Op::forward && !segment.reads_weights_backward) return false;
  return std::find(segment.units.begin(), segment.units.end(), unit) != segment.units.end();
}

ProgramFigures program_figures(const ResolvedRun& run) {
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  // Among the ranks of a stage: the first rank of each size, and how many ranks have that size.
  std::map<std::tuple<int, int, int, int>, std::pair<int, std::int64_t>> kinds;
  for (int rank = 0; rank < config.parallelism.stage_ranks(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    ++kinds.try_emplace({at.cp, at.tp, at.ep, at.etp}, rank, 0).first->second.second;
  }
  ProgramFigures figures;
  for (const auto& [kind, ranks] : kinds) {
    const auto& [first, times] = ranks;
    const Program program = step_program(run, mesh.coordinates(first));
    if (first == 0) figures.whole_stage_units = whole_stage_units(program);
    for (int pp = 0; pp < config.parallelism.pipeline; ++pp) {
      const int rank = first + pp * config.parallelism.stage_ranks();
      add_rank(program, config, mesh, rank, times, figures);
      figures.peak_bytes = std::max(figures.peak_bytes, dry_peak(config, mesh, program, rank).total());
    }
  }
  return figures;
}

std::optional<ProgramFigures> figures_with(Config config, const std::function<void(Config&)>& change) {
  std::optional<ProgramFigures> figures;
  refusal_of([&] {
    change(config);
    figures = program_figures(ResolvedRun(config));
  });
  return figures;
}

void change_policies(Config& config, const std::function<void(ShardPolicy&)>& change) {
  change(config.shard);
  for (auto& [family, policy] : config.shard_by_family) change(policy);
}

std::string policy_setting(const Config& config, const std::string& key,
                           const std::function<bool(const ShardPolicy&)>& holds) {
  if (holds(config.shard)) return "shard." + key;
  std::vector<std::string> settings;
  for (const auto& [family, policy] : config.shard_by_family) {
    if (holds(policy)) settings.push_back(fmt::format("shard.{}.{}", name_of(family), key));
  }
  return settings.empty() ? "shard." + key : fmt::format("{}", fmt::join(settings, ", "));
}

}  // namespace weft
