#include <algorithm>
#include <limits>
#include <utility>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/insertion.h"
#include "parallel/pipeline/program/overlap.h"

namespace weft {
namespace {

constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

// A compute action that reads gathered parameters.
struct Read {
  std::size_t position = 0;     // in the rank's list
  std::size_t computation = 0;  // its number among all compute actions of the rank
  std::size_t visit = 0;        // number of stage changes of the rank before it
  bool forward = false;         // else a recompute or a backward
  bool again = false;           // a recompute (R), in front of its input gradient
  bool returns = false;         // an R whose input gradient reads the units too
  int microbatch = 0;
  std::size_t first_use = 0;  // index into uses; the uses of one action are in the order of its segment's units
  // The number of the read if the halves of overlapped pairs ran one after the other. An R has the number of the input
  // gradient behind it, as if R were a part of that.
  std::size_t in_sequence = 0;
  std::size_t in_list = 0;  // the number of the read in the list, an R again with that of the input gradient behind it
};

// One unit read by one Read. An interval of residency begins at one use and ends at the same or a later one.
struct Use {
  int unit = 0;
  std::size_t read = 0;
  bool begins = false, ends = false;
  bool from_island = false;   // the interval that begins here is gathered over the island
  bool to_island = false;     // the interval that ends here leaves its parts to the island
  std::size_t gather_at = 0;  // if an interval begins: the read before which its gather is issued
};

struct Reads {
  std::vector<Read> reads;
  std::vector<Use> uses;
  std::vector<int> visits;  // the stage of each visit
};

// The visits of a rank. An overlapped pair visits the stage of its forward and then that of its backward, as if the
// rank ran one after the other. The alternating segments change no stage.
class VisitsOfUnit {
 public:
  explicit VisitsOfUnit(const Overlaps& overlaps) : overlaps_(overlaps) {}

  // The visit of the compute action at `position`; positions ascend.
  std::size_t at(const Action& action, std::size_t position) {
    const auto pair = overlaps_.pair_of[position];
    if (!pair) return enter(*action.stage);
    const OverlappedPair& both = overlaps_.pairs[*pair];
    if (both.first == position) {
      forward_ = enter(*both.forward.stage);
      backward_ = enter(*both.backward.stage);
    }
    return action.op == Op::forward ? forward_ : backward_;
  }

  std::vector<int> stages;

 private:
  std::size_t enter(int stage) {
    if (stages.empty() || stages.back() != stage) stages.push_back(stage);
    return stages.size() - 1;
  }

  const Overlaps& overlaps_;
  std::size_t forward_ = 0, backward_ = 0;  // visits of the pair that is open
};

// Numbers the reads so that parameters stay between consecutive numbers. Neighbours in the list alone would not do. The
// halves of a pair alternate, so a block of several segments would be dropped and gathered again at every turn.
// Consecutive are the neighbours of the order without overlap, and those of the order without R. The former are reads
// of one half with only the other half between them. So are the last read of a pair's backward and the first behind
// the pair.
void number_in_sequence(std::vector<Read>& reads, const Overlaps& overlaps) {
  std::size_t in_list = 0;
  for (Read& read : reads) read.in_list = read.again ? in_list : in_list++;
  for (std::size_t begin = 0, number = 0; begin < reads.size();) {
    const auto pair = overlaps.pair_of[reads[begin].position];
    std::size_t end = begin + 1;
    while (pair && end < reads.size() && overlaps.pair_of[reads[end].position] == pair) ++end;
    for (bool forward : {true, false}) {
      for (std::size_t i = begin; i < end; ++i) {
        if (reads[i].forward == forward) reads[i].in_sequence = reads[i].again ? number : number++;
      }
    }
    begin = end;
  }
}

Reads reads_of(const ProgramTables& tables, const std::vector<Action>& actions) {
  Reads result;
  const Overlaps overlaps = find_overlaps(actions);
  VisitsOfUnit visits(overlaps);
  std::size_t computations = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!is_compute(action.op)) continue;
    ++computations;
    const std::size_t visit = visits.at(action, i);
    if (!action.segment) continue;
    const ProgramSegment& segment = tables.segments[*action.segment];
    if (!reads_units(segment, action.op)) continue;
    const std::size_t first_use = result.uses.size();
    for (int unit : segment.units) {
      if (tables.units[unit].replicated) continue;
      result.uses.push_back({.unit = unit, .read = result.reads.size()});
    }
    if (result.uses.size() > first_use) {
      const bool again = action.op == Op::recompute;
      result.reads.push_back({i, computations, visit, action.op == Op::forward, again,
                              again && segment.reads_weights_backward, *action.microbatch, first_use});
    }
  }
  number_in_sequence(result.reads, overlaps);
  result.visits = std::move(visits.stages);
  return result;
}

// Whether `stage` is among the next `window` different stages, counted from each of the visits first + 1 .. last.
bool stays_in_window(const std::vector<int>& visits, int stage, int window, std::size_t first, std::size_t last) {
  for (std::size_t from = first + 1; from <= last; ++from) {
    std::vector<int> others;  // different stages before the rank returns to `stage`
    for (std::size_t v = from; visits[v] != stage; ++v) {
      if (std::ranges::find(others, visits[v]) == others.end()) others.push_back(visits[v]);
    }
    if (static_cast<int>(others.size()) >= window) return false;
  }
  return true;
}

// Whether two successive reads of a unit belong to one forward or one backward of its block.
bool same_turn(const Read& one, const Read& other) {
  return one.forward == other.forward && one.microbatch == other.microbatch;
}

// Whether full parameters stay from one use of a unit to the next. They always stay from an R to its input gradient;
// mark_intervals sees to it if a forward of the same stage stands between the two.
bool kept(const UnitPolicy& policy, const Reads& rank, const Use& use, const Use& next_use) {
  const Read &read = rank.reads[use.read], &next = rank.reads[next_use.read];
  if (next.in_list <= read.in_list + 1) return true;
  if (next.in_sequence == read.in_sequence || next.in_sequence == read.in_sequence + 1) return true;
  if (read.again && same_turn(read, next)) return true;
  switch (policy.residency) {
    case Residency::reshard_after_use:
    case Residency::island:
      return false;
    case Residency::keep_after_forward:
      return read.forward;
    case Residency::keep_after_backward:
      return !read.forward;
    case Residency::while_on_stage:
      return read.visit == next.visit;
    case Residency::window:
      return stays_in_window(rank.visits, rank.visits[read.visit], policy.window_stages, read.visit, next.visit);
    case Residency::step:
    case Residency::solved:  // refused (passes.cpp)
      return true;
  }
  return false;
}

// Marks each use at which an interval begins or ends, and the place where the gather would be issued. Units that one
// read finds sharded are gathered together and count once, however many they are.
void mark_intervals(const ProgramTables& tables, Reads& rank) {
  std::vector<std::size_t> last_use(tables.units.size(), never);  // index into uses
  std::vector<std::size_t> interval(tables.units.size(), never);  // the unit's last interval, from gather to RESHARD
  std::vector<int> recomputed(tables.units.size(), -1);  // the microbatch of an R whose input gradient is to come
  // By interval, in the order of gathers: the read at which its last forward or backward so far began.
  std::vector<std::size_t> turns;
  std::vector<std::size_t> first_of_read;  // the first interval that each such read begins
  const auto place_of_gather = [&](std::size_t read, std::size_t ahead) -> std::size_t {
    if (ahead == 0) return read;
    if (ahead > first_of_read.size()) return 0;
    const std::size_t group = first_of_read.size() - ahead;
    const std::size_t end = group + 1 < first_of_read.size() ? first_of_read[group + 1] : turns.size();
    std::size_t place = 0;
    for (std::size_t i = first_of_read[group]; i < end; ++i) place = std::max(place, turns[i]);
    return place;
  };
  std::vector<std::size_t> first_of_visit(rank.visits.size(), never);
  for (std::size_t begin = 0; begin < rank.uses.size();) {
    const std::size_t read = rank.uses[begin].read;
    std::size_t& visit_began = first_of_visit[rank.reads[read].visit];
    visit_began = std::min(visit_began, read);
    std::size_t end = begin;
    for (; end < rank.uses.size() && rank.uses[end].read == read; ++end) {
      Use& use = rank.uses[end];
      const UnitPolicy& policy = tables.units[use.unit].policy;
      const std::size_t previous = last_use[use.unit];
      use.begins = previous == never || (recomputed[use.unit] < 0 && !kept(policy, rank, rank.uses[previous], use));
      const Read& now = rank.reads[read];
      if (now.returns) recomputed[use.unit] = now.microbatch;
      if (!now.again && !now.forward && recomputed[use.unit] == now.microbatch) recomputed[use.unit] = -1;
      if (!use.begins) continue;
      const bool ahead = now.forward || policy.backward_prefetch == BackwardPrefetch::pre;
      use.gather_at = place_of_gather(read, ahead ? policy.lookahead : 0);
      if (policy.within_stage) use.gather_at = std::max(use.gather_at, visit_began);
      if (previous == never) continue;
      Use& last = rank.uses[previous];
      last.ends = true;
      last.to_island = use.from_island = policy.residency == Residency::island && rank.reads[last.read].forward;
      use.gather_at = std::max(use.gather_at, last.read + 1);
    }
    // Intervals are added only now: other units of this read must not count in the lookahead of its gathers.
    const std::size_t first_interval = turns.size();
    for (; begin < end; ++begin) {
      const Use& use = rank.uses[begin];
      const std::size_t previous = std::exchange(last_use[use.unit], begin);
      if (use.begins) {
        interval[use.unit] = turns.size();
        turns.push_back(read);
      } else if (!same_turn(rank.reads[rank.uses[previous].read], rank.reads[read])) {
        turns[interval[use.unit]] = read;
      }
    }
    if (turns.size() > first_interval) first_of_read.push_back(first_interval);
  }
  for (std::size_t last : last_use) {
    if (last != never) rank.uses[last].ends = true;
  }
}

// A unit with a long lookahead must not overtake a unit that is needed first. Its gather is issued later, which never
// takes more memory than its policy allows. A gather that would directly follow the reshard of its unit is left out,
// and the unit stays. The lookahead of others still counts that gather, so no other gather is issued earlier.
void settle_gathers(const ProgramTables& tables, Reads& rank) {
  std::size_t latest = 0;
  std::vector<std::size_t> last_use(tables.units.size(), never);  // index into uses
  for (std::size_t i = 0; i < rank.uses.size(); ++i) {
    Use& use = rank.uses[i];
    const std::size_t previous = std::exchange(last_use[use.unit], i);
    if (!use.begins) continue;
    use.gather_at = std::max(use.gather_at, latest);
    if (previous != never) {
      Use& last = rank.uses[previous];
      if (rank.reads[use.gather_at].computation == rank.reads[last.read].computation + 1) {
        last.ends = last.to_island = use.begins = use.from_island = false;
        continue;
      }
    }
    latest = use.gather_at;
  }
}

std::vector<Action> with_residency(const ProgramTables& tables, const std::vector<Action>& actions) {
  Reads rank = reads_of(tables, actions);
  mark_intervals(tables, rank);
  settle_gathers(tables, rank);

  const auto gather = [&tables](const Use& use) {
    const ProgramUnit& unit = tables.units[use.unit];
    return Action{.op = use.from_island ? Op::unshard_secondary : Op::unshard,
                  .stage = unit.stage,
                  .unit = use.unit,
                  .bytes = unit.gather_bytes};
  };
  const auto reshard = [&tables](const Use& use) {
    return Action{.op = use.to_island ? Op::reshard_secondary : Op::reshard,
                  .stage = tables.units[use.unit].stage,
                  .unit = use.unit};
  };
  std::vector<Insertion> insertions;
  std::size_t next_gather = 0;  // index into uses; both cursors only advance
  const auto& [reads, uses, visits] = rank;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const std::size_t before = before_with_receives(actions, reads[i].position);
    for (; next_gather < uses.size(); ++next_gather) {
      const Use& use = uses[next_gather];
      if (!use.begins) continue;
      if (use.gather_at > i) break;
      insertions.push_back({before, gather(use)});
    }
    const std::size_t behind = behind_with_sends(actions, reads[i].position);
    for (std::size_t j = reads[i].first_use; j < uses.size() && uses[j].read == i; ++j) {
      if (uses[j].ends) insertions.push_back({behind, reshard(uses[j])});
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
