#include "trainer/resolve/resolved_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/config/config_schema.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/chosen_timing.h"
#include "trainer/resolve/solved_timing.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

std::string unit_line(const PlannedUnit& unit) {
  const bool replicated = unit.plan.replicated();
  std::string line = fmt::format("  {} {} {}", unit.plan.name, name_of(unit.plan.family), name_of(unit.shard_group));
  line += replicated ? " replicated" : fmt::format(" {} x {}", unit.layout.shards, unit.layout.shard_size);
  for (const ParameterSpec& parameter : replicated ? unit.plan.parameters : unit.layout.parameters) {
    line += fmt::format(" {} {}x{}", parameter.name, parameter.rows, parameter.columns);
  }
  return line + "\n";
}

// The program: a line for each pipeline rank, as `weft program --format csv` writes it.
std::string hashed_program(const Program& program) {
  std::string text;
  for (const std::vector<Action>& actions : program.ranks) text += format_actions(program, actions, ",") + "\n";
  return text;
}

// For each kind of group its size and the step between its ranks. For each stage its units with group, shards and
// parameters, as the stage's first rank holds them.
std::string hashed_layout(const ResolvedRun& run) {
  const Mesh& mesh = run.mesh();
  std::string text;
  for (const Group group : all_groups) {
    const RankSteps steps = mesh.steps(group);
    text += fmt::format("{} {} ranks, {} apart\n", name_of(group), steps.count, steps.stride);
  }
  std::map<int, std::string> stages;
  for (int pp = 0; pp < mesh.degrees().pipeline; ++pp) {
    for (const PlannedStage& stage : plan_stages(run.config(), mesh, {.pp = pp}, run.layout())) {
      std::string& units = stages[stage.stage];
      units = fmt::format("stage {} on pipeline rank {}\n", stage.stage, pp);
      for (const PlannedUnit& unit : stage.units) units += unit_line(unit);
    }
  }
  for (const auto& [stage, units] : stages) text += units;
  return text;
}

std::string text_hash(const std::string& text) {
  return checksum_text(checksum(text));
}

}  // namespace

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

std::string hashed_configuration(const Config& config) {
  constexpr std::array<std::string_view, 4> places = {"run.name", "run.directory", "checkpoint.directory",
                                                      "data.index_cache"};
  std::vector<ConfigKey> schema = config_schema();
  std::erase_if(schema, [&](const ConfigKey& key) { return std::ranges::find(places, key.path()) != places.end(); });
  return write_config(config, schema, [](const ConfigKey&) { return std::string(); });
}

std::map<std::string, std::string> timed_work(const Config& config) {
  constexpr std::array<std::string_view, 5> single = {"run.device", "training.frozen", "training.microbatch_size",
                                                      "training.recompute", "training.sequence_length"};
  Config timed = config;
  timed.layers_text = std::to_string(timed.model.mtp_depth);  // the same however the blocks are written
  for (const ModelBlock& block : timed.model.blocks) timed.layers_text += " " + block_symbol(block);
  // A block's forward that runs again takes what the first took; the others change the times of backward calls.
  if (recomputes_blocks(timed.training.recompute)) timed.training.recompute = Recompute::none;
  timed.parallelism.pipeline = 1;
  std::map<std::string, std::string> work;
  for (const ConfigKey& key : config_schema()) {
    const std::string section = key.section.substr(0, key.section.find('.'));
    if (section == "model" || section == "parallelism" || section == "precision") {
      work[section == "parallelism" ? "[parallelism] besides pipeline" : fmt::format("[{}]", section)] +=
          fmt::format("{} = {}\n", key.path(), key.write(timed));
    } else if (std::ranges::find(single, key.path()) != single.end()) {
      work[key.path()] = key.write(timed);
    }
  }
  return work;
}

std::string work_hash(const Config& config) {
  std::string text;
  for (const auto& [name, values] : timed_work(config)) text += fmt::format("{} {}\n", name, values);
  return text_hash(text);
}

RunHashes hashes_of(const Config& config, const ResolvedRun& run, const Program& program) {
  return {text_hash(hashed_configuration(config)), text_hash(hashed_program(program)), text_hash(hashed_layout(run))};
}

}  // namespace weft
