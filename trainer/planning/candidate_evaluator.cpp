#include "trainer/planning/candidate_evaluator.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// A message without its numbers, as the name of a reason. With numbers, every choice would have a reason of its own.
std::string without_numbers(std::string_view message) {
  std::string reason;
  for (const char c : message.substr(0, message.find('\n'))) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      reason += c;
    } else if (reason.empty() || reason.back() != '#') {
      reason += '#';
    }
  }
  return reason;
}

void refuse(SearchCounts& counts, const std::string& message, std::size_t choices) {
  Refusals& refusals = counts.refused[without_numbers(message)];
  if (refusals.choices == 0) refusals.example = message.substr(0, message.find('\n'));
  refusals.choices += choices;
}

// The part of the policies that the program depends on. Choices with equal texts compile to the same program.
std::string policy_text(const Config& config) {
  std::string text;
  const bool one = config.microbatches() == 1;  // its reduction is that of the last one, too
  const bool by_stage = std::ranges::any_of(config.shard_by_family,
                                            [](const auto& entry) { return !entry.second.residency_by_stage.empty(); });
  for (int stage = 0; stage < (by_stage ? config.stages() : 1); ++stage) {
    std::map<std::string, std::size_t> merged;  // families with one key may share a unit
    const WrapRules wrap = wrap_rules(config, stage);
    for (const auto& [family, shard] : config.shard_by_family) {
      const UnitPolicy policy = resolve_policy(config, family, stage);
      text += fmt::format("{} {} {} {} {} {} {} {} {} {} {};", name_of(policy.residency), policy.window_stages,
                          policy.island_ranks, policy.lookahead, name_of(policy.backward_prefetch), policy.within_stage,
                          one ? 1 : policy.reduce_every, policy.accumulate_sharded,
                          shard.strategy == ShardStrategy::no_shard, to_string(shard.wrap),
                          merged.try_emplace(wrap.merge_key.at(family), merged.size()).first->second);
    }
  }
  return text;
}

}  // namespace

void add(SearchCounts& sum, const SearchCounts& part) {
  for (const auto& [reason, refusals] : part.refused) {
    Refusals& all = sum.refused[reason];
    if (all.choices == 0) all.example = refusals.example;
    all.choices += refusals.choices;
  }
  for (const auto& [rule, choices] : part.left_out) sum.left_out[rule] += choices;
  for (const ChoiceOutcome outcome : all_values<ChoiceOutcome>) sum[outcome] += part[outcome];
}

std::vector<SearchNode> CandidateEvaluator::first(SearchCounts& counts) const {
  std::vector<SearchNode> all;
  for (std::size_t mesh = 0; mesh < space_.meshes.size(); ++mesh) {
    const std::size_t below = space_.choices_of_mesh(space_.meshes[mesh]);
    if (!accepted(ChoiceStep::mesh, config_of(space_, {mesh}, ChoiceStep::mesh), below, counts)) continue;
    const std::size_t choices = below / space_.microbatch_sizes.size();
    for (std::size_t size = 0; size < space_.microbatch_sizes.size(); ++size) {
      const SearchChoice choice{mesh, size};
      const Config config = config_of(space_, choice, ChoiceStep::microbatch);
      if (!accepted(ChoiceStep::microbatch, config, choices, counts)) continue;
      all.push_back({.known = Known::pieces, .choice = choice, .choices = choices});
    }
  }
  return all;
}

bool CandidateEvaluator::accepted(ChoiceStep step, const Config& config, std::size_t choices,
                                  SearchCounts& counts) const {
  if (const auto message = refusal(space_, step, config)) {
    refuse(counts, *message, choices);
    return false;
  }
  if (const auto rule = left_out(space_, step, config)) {
    counts.left_out[*rule] += choices;
    return false;
  }
  return true;
}

bool CandidateEvaluator::fits(std::int64_t bytes) const {
  BucketBytes all;
  all[Bucket::workspace] = bytes;
  return judge(space_.hardware, all).fits();
}

CandidateEvaluation CandidateEvaluator::weigh(const SearchNode& given) const {
  SearchNode node = given;
  node.bytes = std::numeric_limits<std::int64_t>::max();
  // Recompute adds time, and changes no static bytes.
  const bool has_none = std::ranges::find(space_.recomputes, Recompute::none) != space_.recomputes.end();
  const Pieces pieces = pieces_of(node, [&](Recompute recompute) { return !has_none || recompute == Recompute::none; });
  // Other recomputes may keep less.
  for (const auto& [key, common] : pieces) {
    ModelPieces& of = common->pieces;
    for (ModelPiece* piece : {&of.embedding, &of.head, &of.both}) piece->kept_bytes = 0;
    for (auto& [kind, piece] : of.blocks) piece.kept_bytes = 0;
  }
  double of_policies = std::numeric_limits<double>::infinity(), of_orders = of_policies;
  SearchChoice choice = node.choice;
  int stages = 1;
  std::optional<std::size_t> hiding;
  std::set<std::tuple<int, bool, bool>> known;  // orders with equal bounds
  for (const std::size_t order : space_.orders_of(space_.meshes[choice.mesh].pipeline)) {
    const SearchedOrder& row = space_.orders[order];
    const Schedule& schedule = find_schedule(row.schedule);
    if (known.contains({row.chunks, schedule.parts, schedule.overlaps})) continue;
    choice.order = order;
    const Config config = config_of(space_, choice, ChoiceStep::order);
    if (refusal(space_, ChoiceStep::order, config) || left_out(space_, ChoiceStep::order, config)) continue;
    known.insert({row.chunks, schedule.parts, schedule.overlaps});
    stages = std::max(stages, config.stages());
    for (const auto& [key, common] : pieces) {
      of_orders = std::min(of_orders, seconds_of_pipeline(config, common->pieces));
    }
    // An order that hides exchanges has the lowest bound.
    if (!hiding || schedule.overlaps) hiding = order;
  }
  choice.order = hiding.value_or(0);
  for (choice.policy = 0; choice.policy < space_.policies.size(); ++choice.policy) {
    const Config config = config_of(space_, choice, ChoiceStep::policy);
    for (const auto& [key, common] : pieces) {
      if (key.second != kind_of(choice.policy)) continue;
      const LeastTaken least = least_of_any_order(config, common->pieces, stages);
      node.bytes = std::min(node.bytes, least.bytes);
      if (fits(least.bytes)) of_policies = std::min(of_policies, least.seconds);
    }
  }
  node.seconds = std::max(of_policies, of_orders);
  CandidateEvaluation step;
  if (fits(node.bytes)) {
    step.nodes.push_back(std::move(node));
  } else {
    step.counts[ChoiceOutcome::static_bytes] = node.choices;
    step.too_large.push_back(std::move(node));
  }
  return step;
}

CandidateEvaluator::Pieces CandidateEvaluator::pieces_of(const SearchNode& node,
                                                         const std::function<bool(Recompute)>& wanted) const {
  Pieces pieces;
  SearchChoice choice = node.choice;
  for (choice.recompute = 0; choice.recompute < space_.recomputes.size(); ++choice.recompute) {
    if (!wanted(space_.recomputes[choice.recompute])) continue;
    for (choice.policy = 0; choice.policy < space_.policies.size(); ++choice.policy) {
      const std::pair key(choice.recompute, kind_of(choice.policy));
      if (pieces.contains(key)) continue;
      const Config config = config_of(space_, choice, ChoiceStep::policy);
      pieces.emplace(key, std::make_shared<CommonPieces>(known_.of(config, key.second)));
    }
  }
  return pieces;
}

// A key of a policy: policies with equal keys have the same pieces.
std::string CandidateEvaluator::kind_of(std::size_t policy) const {
  const SearchedPolicy& row = space_.policies[policy];
  return row.strategy + " " + row.reduction + (row.residency == "auto" ? " auto" : "");
}

// All choices with a mesh and a microbatch.
CandidateEvaluation CandidateEvaluator::expand(const SearchNode& node) const {
  CandidateEvaluation step;
  const Pieces pieces = pieces_of(node, [](Recompute) { return true; });
  const std::size_t recomputes = space_.recomputes.size(), below = space_.policies.size() * recomputes;
  for (const std::size_t order : space_.orders_of(space_.meshes[node.choice.mesh].pipeline)) {
    SearchChoice choice{node.choice.mesh, node.choice.microbatch, order};
    if (!accepted(ChoiceStep::order, config_of(space_, choice, ChoiceStep::order), below, step.counts)) continue;
    std::set<std::string> known;
    for (choice.policy = 0; choice.policy < space_.policies.size(); ++choice.policy) {
      choice.recompute = 0;
      const Config config = config_of(space_, choice, ChoiceStep::policy);
      if (!accepted(ChoiceStep::policy, config, recomputes, step.counts)) continue;
      if (!known.insert(policy_text(config)).second) {
        step.counts[ChoiceOutcome::same] += recomputes;
        continue;
      }
      for (; choice.recompute < recomputes; ++choice.recompute) {
        const auto& common = pieces.at({choice.recompute, kind_of(choice.policy)});
        const LeastTaken least = least_of_any_layout(config, common->pieces);
        add_leaf({.known = Known::mean, .choice = choice, .common = common}, least, step);
      }
    }
  }
  return step;
}

void CandidateEvaluator::add_leaf(SearchNode node, const LeastTaken& least, CandidateEvaluation& step) const {
  node.seconds = std::max(node.seconds, least.seconds);
  node.bytes = std::max(node.bytes, least.bytes);
  const bool static_fits = fits(least.static_bytes), all_fits = static_fits && fits(node.bytes);
  if (!all_fits) ++step.counts[static_fits ? ChoiceOutcome::held_bytes : ChoiceOutcome::static_bytes];
  (all_fits ? step.nodes : step.too_large).push_back(std::move(node));
}

Config CandidateEvaluator::config_of_node(const SearchNode& node) const {
  Config config = config_of(space_, node.choice, ChoiceStep::policy);
  config.pipeline.layout = node.layout;
  return config;
}

const ScheduleResidents& CandidateEvaluator::residents_of(const Config& config, std::size_t order) const {
  const std::tuple key(config.parallelism.pipeline, order, config.microbatches());
  {
    const std::lock_guard lock(residents_mutex_);
    if (const auto found = residents_.find(key); found != residents_.end()) return found->second;
  }
  ScheduleResidents residents = schedule_residents(config);
  const std::lock_guard lock(residents_mutex_);
  return residents_.emplace(key, std::move(residents)).first->second;
}

CandidateEvaluation CandidateEvaluator::deal(SearchNode node) const {
  const Config config = config_of(space_, node.choice, ChoiceStep::policy);
  CommonPieces& common = *node.common;
  KnownOfLayout known{.residents = &residents_of(config, node.choice.order), .splits = space_.splits.get()};
  // Under a budget the bytes of a block depend on the order, too.
  if (!config.memory_budget) {
    std::call_once(common.dealt, [&] { common.items = layout_items(config); });
    known.items = &common.items;
  }
  const std::vector<StageBlocks> layout = stage_layout(config, known);
  const LeastTaken least = least_of_any_list(config, common.pieces, layout);
  node.known = Known::layout;
  node.layout = config.stages() == 1 ? "auto" : to_string(layout, config.model);
  CandidateEvaluation step;
  add_leaf(std::move(node), least, step);
  return step;
}

CandidateEvaluation CandidateEvaluator::tighten(SearchNode node) const {
  const Config config = config_of_node(node);
  const LeastTaken least = least_taken(config, node.common->pieces, stage_layout(config));
  node.known = Known::bounds;
  node.common.reset();
  CandidateEvaluation step;
  add_leaf(std::move(node), least, step);
  return step;
}

CandidateEvaluation CandidateEvaluator::simulated(SearchNode node) const {
  CandidateEvaluation step;
  SearchedPlan plan{.choice = node.choice};
  const auto refused = refusal_of([&] {
    const ResolvedRun run(config_of_node(node));
    plan.layout = to_string(run.layout(), run.config().model);
    const Program program = step_program(run, run.mesh().coordinates(0));
    plan.time = step_time(run.config(), run.mesh(), program, space_.hardware);
  });
  if (refused) {
    refuse(step.counts, *refused, 1);
    return step;
  }
  node.known = Known::seconds;
  node.seconds = plan.time.seconds;
  node.plan = std::make_shared<const SearchedPlan>(std::move(plan));
  step.nodes.push_back(std::move(node));
  return step;
}

CandidateEvaluation CandidateEvaluator::walk(SearchNode node) const {
  SearchedPlan plan = *node.plan;
  const ResolvedRun run(config_of_node(node));
  StepPrograms programs(run);
  plan.peak = fullest_peak(programs);
  plan.verdict = judge(space_.hardware, plan.peak, host_need(programs));
  node.bytes = std::max(node.bytes, plan.peak.total());
  node.known = Known::all;
  node.plan = std::make_shared<const SearchedPlan>(std::move(plan));
  CandidateEvaluation step;
  const bool fits = node.plan->verdict.fits();
  ++step.counts[fits ? ChoiceOutcome::planned : ChoiceOutcome::unfit];
  (fits ? step.nodes : step.too_large).push_back(std::move(node));
  return step;
}

CandidateEvaluation CandidateEvaluator::evaluate(const SearchNode& node) const {
  switch (node.known) {
    case Known::pieces:
      return expand(node);
    case Known::mean:
      return deal(node);
    case Known::layout:
      return tighten(node);
    case Known::bounds:
      return simulated(node);
    default:
      return walk(node);
  }
}

CandidateEvaluation CandidateEvaluator::evaluate_bytes(const SearchNode& node) const {
  CandidateEvaluation step = evaluate(node);
  const bool timed = node.known == Known::bounds && !step.nodes.empty();
  return timed ? walk(std::move(step.nodes.front())) : step;
}

}  // namespace weft
