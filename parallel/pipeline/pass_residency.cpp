#include <algorithm>
#include <limits>
#include <utility>

#include "parallel/pipeline/insertion.h"
#include "parallel/pipeline/passes.h"

namespace weft {
namespace {

constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

// A compute action that reads gathered parameters. Reads are numbered along the rank; lookahead counts in them.
struct Read {
  std::size_t position = 0;   // in the rank's list
  std::size_t visit = 0;      // how often the rank had changed its stage before
  std::size_t first_use = 0;  // of `uses`; the uses of one action are in the order of its segment's units
};

// One unit read by one such action. An interval of residency begins at one use and ends at the same or a later one.
struct Use {
  int unit = 0;
  std::size_t read = 0;
  bool begins = false, ends = false;
  std::size_t gather_at = 0;  // the read before which the gather is issued, where the interval begins
};

struct Reads {
  std::vector<Read> reads;
  std::vector<Use> uses;
};

Reads reads_of(const ProgramTables& tables, const std::vector<Action>& actions) {
  Reads result;
  std::optional<int> stage;
  std::size_t visit = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!is_compute(action.op)) continue;
    if (stage != action.stage) ++visit;
    stage = action.stage;
    if (!reads_parameters(action.op) || !action.segment) continue;
    const std::size_t first_use = result.uses.size();
    for (int unit : tables.segments[static_cast<std::size_t>(*action.segment)].units) {
      if (tables.units[static_cast<std::size_t>(unit)].replicated) continue;
      result.uses.push_back({.unit = unit, .read = result.reads.size()});
    }
    if (result.uses.size() > first_use) result.reads.push_back({i, visit, first_use});
  }
  return result;
}

// Whether full parameters stay from one use of a unit to the next.
bool kept(Residency residency, const std::vector<Read>& reads, std::size_t use, std::size_t next_use) {
  switch (residency) {
    case Residency::each_use:
      return next_use <= use + 1;
    case Residency::visit:
      return reads[use].visit == reads[next_use].visit;
    case Residency::step:
      return true;
  }
  return false;
}

void mark_intervals(const ProgramTables& tables, Reads& rank) {
  std::vector<std::size_t> last_use(tables.units.size(), never);  // index into uses
  for (std::size_t i = 0; i < rank.uses.size(); ++i) {
    Use& use = rank.uses[i];
    const UnitPolicy& policy = tables.units[static_cast<std::size_t>(use.unit)].policy;
    const std::size_t previous = std::exchange(last_use[static_cast<std::size_t>(use.unit)], i);
    if (previous != never && kept(policy.residency, rank.reads, rank.uses[previous].read, use.read)) continue;
    use.begins = true;
    const auto lookahead = static_cast<std::size_t>(policy.lookahead);
    use.gather_at = use.read - std::min(use.read, lookahead);
    if (previous != never) {
      rank.uses[previous].ends = true;
      use.gather_at = std::max(use.gather_at, rank.uses[previous].read + 1);
    }
  }
  for (std::size_t last : last_use) {
    if (last != never) rank.uses[last].ends = true;
  }
}

// A unit with a long lookahead must not overtake one that is needed first: its gather is issued later instead, which
// never takes more memory than its policy allows.
void order_gathers_by_need(std::vector<Use>& uses) {
  std::size_t latest = 0;
  for (Use& use : uses) {
    if (use.begins) latest = use.gather_at = std::max(use.gather_at, latest);
  }
}

std::vector<Action> with_residency(const ProgramTables& tables, const std::vector<Action>& actions) {
  Reads rank = reads_of(tables, actions);
  mark_intervals(tables, rank);
  order_gathers_by_need(rank.uses);

  const auto unit_action = [&tables](Op op, int index) {
    const ProgramUnit& unit = tables.units[static_cast<std::size_t>(index)];
    return Action{.op = op, .stage = unit.stage, .unit = index, .bytes = op == Op::unshard ? unit.gather_bytes : 0};
  };
  std::vector<Insertion> insertions;
  std::size_t next_gather = 0;  // of uses; both cursors only advance
  const auto& [reads, uses] = rank;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const std::size_t before = before_with_receives(actions, reads[i].position);
    for (; next_gather < uses.size(); ++next_gather) {
      const Use& use = uses[next_gather];
      if (!use.begins) continue;
      if (use.gather_at > i) break;
      insertions.push_back({before, unit_action(Op::unshard, use.unit)});
    }
    const std::size_t behind = behind_with_sends(actions, reads[i].position);
    for (std::size_t j = reads[i].first_use; j < uses.size() && uses[j].read == i; ++j) {
      if (uses[j].ends) insertions.push_back({behind, unit_action(Op::reshard, uses[j].unit)});
    }
  }
  return insert_actions(actions, insertions);
}

}  // namespace

Program add_residency(Program program) {
  for (auto& actions : program.ranks) actions = with_residency(program, actions);
  return program;
}

}  // namespace weft
