#include "trainer/resolve/chosen_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/step_costs.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

// Whether full parameters and whole gradients are kept for the step; one for routed experts, one for other families.
struct Kept {
  bool parameters = false, gradients = false;
  bool keeps(const Kept& other) const { return parameters >= other.parameters && gradients >= other.gradients; }
  bool operator==(const Kept&) const = default;
};
struct Choice {
  Kept experts, others;
  // Whether this choice keeps everything that `other` keeps.
  bool keeps(const Choice& other) const { return experts.keeps(other.experts) && others.keeps(other.others); }
  bool operator==(const Choice&) const = default;

  const Kept& of(Family family) const { return family == Family::experts ? experts : others; }
  Kept& of(Family family) { return family == Family::experts ? experts : others; }
};

// The open settings, each true if it could be kept whole.
Choice open_choice(const Config& config) {
  Choice open;
  for (const auto& [family, policy] : config.shard_by_family) {
    if (!has_family(config, family) || shard_ranks(config.parallelism, family) == 1) continue;
    open.of(family).parameters |= leaves_residency_open(policy);
    open.of(family).gradients |=
        leaves_reduction_open(policy) && config.microbatches() > 1 && !config.training.frozen.contains(family);
  }
  return open;
}

// Writes out each family's open choices.
Config with_choice(Config config, const Choice& choice, const std::string& why) {
  for (auto& [family, policy] : config.shard_by_family) {
    const Kept& kept = choice.of(family);
    if (leaves_reduction_open(policy)) {
      policy.reduction = {ReductionKind::last_microbatch};
      const bool in_shards = !kept.gradients && config.microbatches() > 1 && may_add_up_in_shards(config, family);
      policy.accumulation = in_shards ? Accumulation::sharded : Accumulation::unsharded;
    }
    if (!leaves_residency_open(policy)) continue;
    const PromisedResidency promised = promised_residency(policy, family);
    policy.residency = {kept.parameters ? Residency::step : promised.residency};
    policy.why = why.empty() ? promised.why : why;
  }
  return config;
}

// The stages of the first rank of each pipeline position.
std::vector<std::vector<PlannedStage>> stages_by_rank(const Config& config, const Mesh& mesh) {
  const std::vector<StageBlocks> layout = stage_layout(config);
  std::vector<std::vector<PlannedStage>> ranks;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    ranks.push_back(plan_stages(config, mesh, {.pp = rank}, layout));
  }
  return ranks;
}

// Bytes of units that a rank with these stages keeps whole, if it keeps `kept_of(unit)` of each.
struct WholeBytes {
  std::int64_t parameters = 0, gradients = 0;
};
template <typename KeptOf>
WholeBytes whole_bytes(const std::vector<PlannedStage>& stages, const KeptOf& kept_of) {
  WholeBytes bytes;
  for (const PlannedStage& stage : stages) {
    for (const PlannedUnit& unit : stage.units) {
      if (unit.plan.replicated()) continue;
      const UnitBytes sizes = unit_bytes(unit.setup());
      const Kept kept = kept_of(unit);
      if (kept.parameters) bytes.parameters += sizes.unsharded_parameters;
      if (kept.gradients && !unit.frozen) bytes.gradients += sizes.unsharded_gradients;
    }
  }
  return bytes;
}

// A lower bound, cheaper than a program: the static bytes of each rank and the bytes that the choice keeps.
std::int64_t least_bytes(const Config& config, const Mesh& mesh, const Choice& choice) {
  std::int64_t most = 0;
  for (const std::vector<PlannedStage>& stages : stages_by_rank(config, mesh)) {
    const WholeBytes whole = whole_bytes(stages, [&](const PlannedUnit& unit) { return choice.of(unit.plan.family); });
    most = std::max(most, static_bytes(stages).total() + whole.parameters + whole.gradients);
  }
  return most;
}

std::vector<Choice> choices_of(const Choice& open) {
  std::vector<Choice> choices;
  for (int bits = 0; bits < 16; ++bits) {
    const Choice choice{{(bits & 1) != 0, (bits & 2) != 0}, {(bits & 4) != 0, (bits & 8) != 0}};
    if (open.keeps(choice)) choices.push_back(choice);
  }
  return choices;
}

double simulated_seconds(const ResolvedRun& run) {
  const Config& config = run.config();
  const Program program = step_program(run, run.mesh().coordinates(0));
  return simulate(program, step_costs(config, run.mesh(), program, hardware_of(config)), lane_channels(config)).seconds;
}

// A choice as a run, simulated at once. Its memory is determined on demand, under the routing that it is judged by.
class Candidate {
 public:
  Candidate(const Config& config, const Choice& choice)
      : choice_(choice), run_(with_choice(config, choice, {})), seconds_(simulated_seconds(run_)) {}

  const Choice& choice() const { return choice_; }
  double seconds() const { return seconds_; }
  const Verdict& verdict(const Hardware& hardware) const {
    if (!verdict_) verdict_ = judge(hardware, fullest_peak(run_, routing_));
    return *verdict_;
  }
  Routing routing() const { return routing_; }
  void judge_by(Routing routing) {
    if (routing != routing_) verdict_.reset();
    routing_ = routing;
  }

 private:
  Choice choice_;
  ResolvedRun run_;
  double seconds_;
  Routing routing_ = Routing::even;
  mutable std::optional<Verdict> verdict_;
};

std::string kept_text(const Kept& kept) {
  if (kept.parameters && kept.gradients) return "parameters and gradients kept whole";
  if (kept.parameters) return "parameters kept whole, gradients reduced after each microbatch";
  if (kept.gradients) return "parameters dropped after each use, gradients kept whole";
  return "parameters dropped after each use, gradients reduced after each microbatch";
}

std::string figures_text(const Candidate& candidate, const Hardware& hardware) {
  const Verdict& verdict = candidate.verdict(hardware);
  return fmt::format("{}{} and {:.3g} s a step", candidate.routing() == Routing::worst ? "at most " : "",
                     verdict.unit().text(verdict.needed), candidate.seconds());
}

std::string why_text(const Candidate& best, const Candidate* next, const Hardware& hardware, bool has_experts) {
  const auto words = [&](const Choice& choice) {
    if (!has_experts || choice.experts == choice.others) return kept_text(choice.others);
    return fmt::format("{}, of experts {}", kept_text(choice.others), kept_text(choice.experts));
  };
  const Verdict& verdict = best.verdict(hardware);
  std::string text = fmt::format("{}: {} of {}", words(best.choice()), figures_text(best, hardware),
                                 verdict.unit().text(verdict.memory));
  if (!next) return text;
  return text + fmt::format("; {}: {}{}", words(next->choice()), figures_text(*next, hardware),
                            next->verdict(hardware).fits() ? "" : ", which does not fit");
}

// Fastest first.
std::vector<Candidate> candidates_of(const Config& config, const std::vector<Choice>& choices) {
  std::vector<std::optional<Candidate>> candidates(choices.size());
  spread_work(choices.size(), dry_threads(), [&](std::size_t i) { candidates[i].emplace(config, choices[i]); });
  std::vector<Candidate> by_time;
  for (std::optional<Candidate>& each : candidates) by_time.push_back(*std::move(each));
  std::ranges::stable_sort(by_time, {}, &Candidate::seconds);
  return by_time;
}

// The first candidate of `by_time` that fits, except `but`; null if none does.
const Candidate* fastest_that_fits(const std::vector<Candidate>& by_time, const Hardware& hardware,
                                   const Candidate* but = nullptr) {
  const auto found = std::ranges::find_if(
      by_time, [&](const Candidate& each) { return &each != but && each.verdict(hardware).fits(); });
  return found == by_time.end() ? nullptr : &*found;
}

// Memory is known to be free only if it is under every routing. If not even the candidate that keeps nothing fits then,
// even routing decides.
void choose_routing(const Config& config, std::vector<Candidate>& candidates, const Hardware& hardware) {
  if (!routing_decides(config)) return;
  const auto least = std::ranges::find(candidates, Choice{}, &Candidate::choice);
  least->judge_by(Routing::worst);
  const Routing routing = least->verdict(hardware).fits() ? Routing::worst : Routing::even;
  for (Candidate& each : candidates) each.judge_by(routing);
}

// The candidate with least memory among those within timing_tie of the fastest that fits, or among all if none fits. A
// candidate that keeps everything another of these keeps takes no less memory and is skipped.
const Candidate& best_of(const std::vector<Candidate>& by_time, const Hardware& hardware) {
  const Candidate* fastest = fastest_that_fits(by_time, hardware);
  const double most = fastest ? timing_tie * fastest->seconds() : std::numeric_limits<double>::infinity();
  const auto tied = [&](const Candidate& each) { return each.seconds() <= most; };
  const Candidate* best = nullptr;
  for (const Candidate& each : by_time) {
    const auto keeps_less = [&](const Candidate& other) {
      return &other != &each && tied(other) && each.choice().keeps(other.choice());
    };
    if (!tied(each) || std::ranges::any_of(by_time, keeps_less)) continue;
    if (!best || each.verdict(hardware).needed < best->verdict(hardware).needed) best = &each;
  }
  return *best;
}

// Whether the configuration sets a timing of its own, where full_shard alone would keep its promise.
bool says_more_than_full_shard(const Config& config, Family family, const ShardPolicy& policy) {
  if (policy.strategy != ShardStrategy::full_shard || !has_family(config, family)) return false;
  if (shard_ranks(config.parallelism, family) == 1) return false;
  return !leaves_residency_open(policy) || !leaves_reduction_open(policy);
}

// The parts of a unit that the configuration, and not Weft, decides to keep on a rank with so many stages.
Kept kept_by_configuration(const Config& config, const PlannedUnit& unit, std::ptrdiff_t stages) {
  const ShardPolicy& said = config.shard_by_family.at(unit.plan.family);
  if (!says_more_than_full_shard(config, unit.plan.family, said)) return {};
  const UnitPolicy& policy = unit.policy;
  const bool every_stage = policy.residency == Residency::window && policy.window_stages >= stages;
  const bool summed_whole = policy.reduce_every == 0 && !policy.accumulate_sharded;
  const bool open = leaves_reduction_open(said) || policy.residency == Residency::solved;
  return {policy.residency == Residency::step || every_stage, summed_whole && !open};
}

}  // namespace

std::vector<std::string> kept_whole_warnings(const Config& config) {
  const bool said = std::ranges::any_of(config.shard_by_family, [&](const auto& entry) {
    return says_more_than_full_shard(config, entry.first, entry.second);
  });
  if (!said) return {};
  WholeBytes most;
  for (const std::vector<PlannedStage>& stages : stages_by_rank(config, Mesh(config.parallelism))) {
    const WholeBytes bytes = whole_bytes(
        stages, [&](const PlannedUnit& unit) { return kept_by_configuration(config, unit, std::ssize(stages)); });
    most.parameters = std::max(most.parameters, bytes.parameters);
    most.gradients = std::max(most.gradients, bytes.gradients);
  }
  std::vector<std::string> warnings;
  const auto warn = [&](std::int64_t bytes, const char* what, const char* key) {
    if (bytes == 0) return;
    warnings.push_back(fmt::format("full_shard keeps {}, up to {} on a rank: {}", what, format_bytes(bytes), key));
  };
  warn(most.parameters, "full parameters from the first forward to the last backward",
       "shard.residency = \"reshard_after_use\" drops them after each use");
  if (config.microbatches() > 1) {
    warn(most.gradients, "whole float32 gradients until the last microbatch",
         "shard.accumulation = \"sharded\" reduces those of each microbatch");
  }
  return warnings;
}

Config with_least_kept(const Config& config) {
  return with_choice(config, {}, "");
}

Config with_chosen_timing(const Config& config, const Mesh& mesh) {
  const bool known = config.hardware.memory.has_value() || !config.hardware.name.empty();
  const Choice open = open_choice(config);
  const Hardware hardware = hardware_of(config);
  if (!known || !hardware.memory || open == Choice{}) return with_least_kept(config);
  // With a memory limit, blocks are assigned by the bytes kept; without one, all choices get the same layout.
  const Config dealt = config.memory_budget ? config : with_layout(config, stage_layout(config));
  std::vector<Choice> choices = choices_of(open);
  const double room = Verdict::limit * hardware.memory->value - hardware.reserved_memory.value;
  std::erase_if(choices, [&](const Choice& choice) {
    return choice != Choice{} && static_cast<double>(least_bytes(dealt, mesh, choice)) > room;
  });
  std::vector<Candidate> by_time = candidates_of(dealt, choices);
  choose_routing(dealt, by_time, hardware);
  const Candidate& best = best_of(by_time, hardware);
  const Candidate* next = fastest_that_fits(by_time, hardware, &best);
  if (!next && by_time.size() > 1) next = &by_time[&best == &by_time[0] ? 1 : 0];
  return with_choice(config, best.choice(), why_text(best, next, hardware, has_family(config, Family::experts)));
}

}  // namespace weft
