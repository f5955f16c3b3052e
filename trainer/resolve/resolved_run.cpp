#include "trainer/resolve/resolved_run.h"

#include <algorithm>
#include <utility>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/passes/passes.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/chosen_timing.h"
#include "trainer/resolve/solved_timing.h"
#include "trainer/resolve/step_costs.h"

namespace weft {

ResolvedRun::ResolvedRun(const Config& config)
    : config_(with_chosen_timing(config, Mesh(config.parallelism))),
      mesh_(config_.parallelism),
      layout_(stage_layout(config_)) {
  if (is_solved(config_)) solve();
  config_ = with_layout(std::move(config_), layout_);
}

void ResolvedRun::solve() {
  const std::int64_t budget = *config_.memory_budget;
  const bool dealt =
      has_automatic_layout(config_) && !config_.pipeline.first_stage_blocks && !config_.pipeline.last_stage_blocks;
  constexpr int most_deals = 5;
  Config tighter = config_, unlimited = config_;
  unlimited.memory_budget.reset();
  // The layout counts routed tokens at their bound (layout_inputs.cpp), a dry run evenly. So the layout without a limit
  // may fit, and is tried first.
  const std::vector<StageBlocks> limited = layout_;
  if (dealt) layout_ = stage_layout(unlimited);
  SolvedTiming least;  // of the first layout and the last, which alone come up under every budget
  std::string least_layout;
  for (int deal = layout_ == limited ? 1 : 0;; ++deal) {
    if (dealt) config_.pipeline.layout = to_string(layout_, config_.model);
    SolvedTiming solved = solve_timing(config_, mesh_, layout_);
    if (solved.plan) {
      timing_ = std::move(solved.plan);
      return;
    }
    const bool last = !dealt || deal == most_deals || config_.stages() == 1;
    const std::int64_t missing = solved.smallest_budget - budget;
    if (least_layout.empty() || (last && solved.smallest_budget < least.smallest_budget)) {
      least = std::move(solved);
      least_layout = to_string(layout_, config_.model);
    }
    if (last) {
      fail_request(
          "shard.memory_budget {} is too small for any timing of this step: {}; the smallest budget that does is "
          "{} B ({}){}",
          format_bytes(budget), least.text, least.smallest_budget, format_bytes(least.smallest_budget),
          dealt && config_.stages() > 1 ? ", with the layout that takes least, " + least_layout : "");
    }
    if (deal == 0) {
      layout_ = limited;
      continue;
    }
    // Layouts count the bytes that pieces declare (layout_inputs.cpp). A dry run finds more, so the limit is lowered.
    tighter.memory_budget = deal + 1 == most_deals ? 1 : std::max(std::int64_t{1}, *tighter.memory_budget - missing);
    layout_ = stage_layout(tighter);
  }
}

Program step_program(const ResolvedRun& run, const Coordinates& at) {
  Program placed = lower_step(run.config(), program_tables(run.config(), run.mesh(), at, run.layout()));
  Program program = run.timing() ? add_solved_sharding(std::move(placed), *run.timing()) : complete(std::move(placed));
  check(program);
  return program;
}

}  // namespace weft
