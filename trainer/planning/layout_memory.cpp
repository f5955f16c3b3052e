#include "trainer/planning/layout_memory.h"

#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

std::int64_t saved(const BucketBytes& bytes) {
  return bytes[Bucket::activations] + bytes[Bucket::moe_routing];
}

// Bytes by stage, for the stages of a rank.
std::vector<std::int64_t> left_by_forwards(const Program& program, int rank, const LedgerWalk& walk) {
  std::vector<std::int64_t> left(program.stages.size(), 0);
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  const int microbatch = program.microbatches > 1 ? 1 : 0;
  std::int64_t before = saved(walk.before);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::int64_t after = saved(walk.actions[i].after);
    // Received tensors are kept too; a sent tensor replaces the one of the message before it.
    const Op op = actions[i].op;
    const bool goes_forward = op == Op::forward || op == Op::send_forward || op == Op::receive_forward;
    if (goes_forward && actions[i].microbatch == microbatch) {
      left[static_cast<std::size_t>(*actions[i].stage)] += after - before;
    }
    before = after;
  }
  return left;
}

}  // namespace

LayoutMemory layout_memory(const ResolvedRun& run) {
  const Program program = step_program(run, run.mesh().coordinates(0));
  LayoutMemory memory;
  memory.kept.resize(program.stages.size());
  memory.peak.resize(program.ranks.size());
  const auto walk = [&](Routing routing, auto set) {
    const std::vector<DryRun> ranks = dry_runs(run.config(), run.mesh(), program, {}, routing);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      set(memory.peak[rank], ranks[rank].peak.total());
      const auto left = left_by_forwards(program, static_cast<int>(rank), ranks[rank].walk);
      for (std::size_t stage = 0; stage < left.size(); ++stage) {
        if (program.stages[stage].rank == static_cast<int>(rank)) set(memory.kept[stage], left[stage]);
      }
    }
    return ranks;
  };
  for (const DryRun& rank : walk(Routing::even, [](RoutedBytes&bytes, std::int64_t even) { bytes.even = even; })) {
    memory.before.push_back(rank.walk.before);
  }
  if (routing_decides(run.config())) {
    walk(Routing::worst, [](RoutedBytes& bytes, std::int64_t worst) { bytes.worst = worst; });
  }
  return memory;
}

}  // namespace weft
