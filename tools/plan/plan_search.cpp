#include "tools/plan/plan_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "tools/command/commands.h"
#include "tools/picture/pareto_svg.h"
#include "tools/report/progress_line.h"
#include "tools/report/report_parts.h"
#include "trainer/planning/remedies.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {

Certainty certainty_of(const SearchSpace& space) {
  return certainty_of(space.policies.front().base, space.hardware);
}

namespace {

constexpr const char* plan_command = "weft plan";

std::string progress_text(const SearchProgress& progress) {
  const SearchCounts& counts = progress.counts;
  const std::string best =
      progress.best_seconds ? fmt::format(", best {}", format_time(*progress.best_seconds, false)) : std::string();
  return fmt::format(
      "{} groups of choices to look at, {} planned, {} do not fit{}", progress.waiting, counts[ChoiceOutcome::planned],
      counts[ChoiceOutcome::static_bytes] + counts[ChoiceOutcome::held_bytes] + counts[ChoiceOutcome::unfit], best);
}

// The degrees of one plan: "pp 2 x dp 1 x 8 x cp 1 x tp 4".
std::string mesh_text(const Degrees& d) {
  std::string text = fmt::format("pp {} x dp {} x {} x cp {} x tp {}", d.pipeline, d.data_replicate, d.data_shard,
                                 d.context, d.tensor);
  if (d.expert > 1 || d.expert_tensor > 1) text += fmt::format(", ep {} x etp {}", d.expert, d.expert_tensor);
  if (d.expert_relay() > 1) text += fmt::format(" {}", name_of(d.expert_dispatch));
  return text;
}

std::string order_text(const SearchSpace& space, const SearchChoice& choice) {
  const SearchedOrder& order = space.orders[choice.order];
  return order.chunks > 1 ? fmt::format("{} x{}", order.schedule, order.chunks) : order.schedule;
}

std::string policy_text(const SearchSpace& space, const SearchChoice& choice) {
  const SearchedPolicy& policy = space.policies[choice.policy];
  std::string text = policy.strategy;
  if (policy.residency != "reshard_after_use") text += ", " + policy.residency;
  if (policy.reduction != "last_microbatch") text += ", " + policy.reduction;
  return text;
}

// The values of a choice, for readers.
std::vector<std::string> values_of(const SearchSpace& space, const SearchChoice& choice) {
  return {mesh_text(space.meshes[choice.mesh]), order_text(space, choice),
          fmt::format("microbatch {}", space.microbatch_sizes[choice.microbatch]), policy_text(space, choice),
          fmt::format("recompute {}", name_of(space.recomputes[choice.recompute]))};
}

double tokens_per_second(const SearchSpace& space, const SearchedPlan& plan) {
  const TrainingConfig& training = space.policies.front().base.training;
  return static_cast<double>(training.global_batch_size * training.sequence_length) / plan.time.seconds;
}

Json plan_json(const SearchSpace& space, const SearchedPlan& plan) {
  Json json = {{"words", words_of(space, plan.choice)},
               {"layout", plan.layout},
               {"step_seconds", plan.time.seconds},
               {"tokens_per_second", tokens_per_second(space, plan)},
               {"mfu", plan.time.mfu},
               {"bubble", plan.time.bubble},
               {"peak_bytes", plan.peak.total()},
               {"buckets", buckets_json(plan.peak)},
               {"needed_bytes", plan.verdict.needed},
               {"memory_bytes", plan.verdict.memory},
               {"verdict", name_of(plan.verdict.fit)},
               {"front", plan.front}};
  add_waits(json, plan.time.waits, "_seconds");
  return json;
}

// What each plan needs under the worst routing, where that changes any memory.
using WorstNeeds = std::vector<std::optional<std::int64_t>>;
WorstNeeds worst_needs(const SearchSpace& space, const std::vector<SearchedPlan>& plans, std::size_t threads) {
  WorstNeeds needs(plans.size());
  spread_work(plans.size(), threads,
              [&](std::size_t i) { needs[i] = worst_need(config_of(space, plans[i].choice), space.hardware); });
  return needs;
}

bool may_not_fit(const SearchedPlan& plan, const std::optional<std::int64_t>& worst) {
  return worst && plan.verdict.memory > 0 && plan.verdict.fit_of(*worst) != Fit::fits;
}

// Null without a plan.
Json kind_json(const BestOfKind& best) {
  if (!best.plan) return Json();
  const RunPlan& plan = *best.plan;
  Json terms = Json::object();
  for (const StepPart& part : plan.mean) terms[part.what] = part.seconds;
  return {{"mesh", mesh_text(best.config->parallelism)},
          {"state_bytes", bytes_of(Cause::state, plan.peak())},
          {"peak_bytes", plan.peak().total()},
          {"needed_bytes", plan.verdict.needed},
          {"verdict", plan.verdict.text()},
          {"step_seconds", plan.time.seconds},
          {"terms", std::move(terms)}};
}

std::vector<int> ranks_of(const SearchSpace& space, const std::vector<SearchedPlan>& plans) {
  return ranks_with_ties(plans, certainty_of(space), [](const SearchedPlan& plan) { return plan.time.seconds; });
}

std::string search_account(const SearchCounts& counts) {
  std::string text;
  const auto line = [&](std::size_t choices, const std::string& what) {
    if (choices > 0) text += fmt::format("{:>12L}  {}\n", choices, what);
  };
  std::size_t refused = 0;
  for (const auto& [reason, refusals] : counts.refused) refused += refusals.choices;
  line(counts.choices, "choices, of which");
  line(refused, "refused by a rule of the configuration:");
  for (const auto& [reason, refusals] : counts.refused) {
    text += fmt::format("{:>16L}  {}{}\n", refusals.choices, refusals.choices > 1 ? "such as: " : "", refusals.example);
  }
  for (const auto& [rule, choices] : counts.left_out) line(choices, "left out: " + rule);
  constexpr std::array words = {"come to the program of another",
                                "do not fit by parameters, gradients and optimizer state alone",
                                "do not fit with the least that microbatches and gradients keep",
                                "slower than the plans shown, or beaten by them, by a bound",
                                "simulated, and slower than the plans shown or beaten by them",
                                "simulated and walked through: do not fit",
                                "simulated and walked through: fit",
                                "left over when time was up"};
  static_assert(words.size() == names_of_all<ChoiceOutcome>.size());
  for (std::size_t i = 0; i < words.size(); ++i) line(counts.outcomes[i], words[i]);
  return text;
}

std::string search_table(const SearchSpace& space, const std::vector<SearchedPlan>& plans, const WorstNeeds& worst) {
  BenchTable table{{"rank", "mesh (dp: replicas x shards)", "schedule", "microbatch", "sharding", "recompute", "step",
                    "tokens/s", "MFU %", "bubble %", "exposed", "memory", "left", "front"}};
  const bool routed = std::ranges::any_of(worst, [](const auto& need) { return need.has_value(); });
  if (routed) table.header.push_back("worst routing");
  const std::vector<int> ranks = ranks_of(space, plans);
  for (const SearchedPlan& plan : plans) {
    const bool judged = plan.verdict.fit != Fit::unknown;
    table.add(rank_text(ranks, table.rows.size()), mesh_text(space.meshes[plan.choice.mesh]),
              order_text(space, plan.choice), space.microbatch_sizes[plan.choice.microbatch],
              policy_text(space, plan.choice), name_of(space.recomputes[plan.choice.recompute]),
              format_time(plan.time.seconds, false), decimals(tokens_per_second(space, plan), 0),
              decimals(100.0 * plan.time.mfu, 1), decimals(100.0 * plan.time.bubble, 1),
              format_time(plan.time.waits.total(), false), format_bytes(plan.verdict.needed),
              judged ? format_bytes(plan.verdict.headroom()) : "", plan.front ? "*" : "");
    if (!routed) continue;
    const auto& need = worst[table.rows.size() - 1];
    table.rows.back().push_back((need ? format_bytes(*need) : "") + (may_not_fit(plan, need) ? "!" : ""));
  }
  return aligned_text(table);
}

// A line for plans that routing may take beyond the card.
std::string routing_text(const std::vector<SearchedPlan>& plans, const WorstNeeds& worst) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (may_not_fit(plans[i], worst[i])) return "!: fits with even routing, and may not fit with another\n";
  }
  return {};
}

// A line for a search that ended before its time was up is empty.
std::string stop_text(const PlanSearchRequest& request, const SearchResult& result) {
  if (!result.not_below) return {};
  const std::string stopped = fmt::format("stopped after {:g} s: ", *request.seconds);
  if (*result.not_below == 0.0) return stopped + "the best plans so far, and not every mesh has a bound\n";
  if (*result.not_below > result.plans.front().time.seconds)
    return stopped + "no choice is faster than the first row\n";
  return fmt::format("{}the best plans so far; no choice takes less than {}\n", stopped,
                     format_time(*result.not_below, false));
}

// The terms of the best with data sharding alone and of the best hybrid, and the one that decides.
std::string kinds_table(const SearchSpace& space, const KindsOfLayout& kinds) {
  BenchTable table{{"best of", "mesh", "state", "memory", "verdict", "step"}};
  for (const TermOfKinds& term : kinds.terms) table.header.push_back(term.what);
  const auto add = [&](LayoutKind kind, const BestOfKind& best, double TermOfKinds::*seconds) {
    if (!best.plan) return;
    const RunPlan& plan = *best.plan;
    auto& row =
        table.add(name_of(kind), mesh_text(best.config->parallelism), format_bytes(bytes_of(Cause::state, plan.peak())),
                  format_bytes(plan.verdict.needed), words_of(plan.verdict.fit), format_time(plan.time.seconds, false));
    for (const TermOfKinds& term : kinds.terms) row.push_back(format_time(term.*seconds, false));
  };
  add(LayoutKind::data_sharding, kinds.data_sharding, &TermOfKinds::data_sharding);
  add(LayoutKind::hybrid, kinds.hybrid, &TermOfKinds::hybrid);
  return fmt::format("data sharding alone beside hybrids on {} ranks; terms of the mean rank's step\n{}decides: {}\n",
                     space.world, aligned_text(table), kinds.decision());
}

std::string search_json(const SearchSpace& space, const SearchResult& result, const WorstNeeds& worst,
                        const KindsOfLayout& kinds) {
  const SearchCounts& counts = result.counts;
  Json refused = Json::array(), left_out = Json::array(), plans = Json::array();
  for (const auto& [reason, refusals] : counts.refused) {
    refused.push_back({{"choices", refusals.choices}, {"example", refusals.example}});
  }
  for (const auto& [rule, choices] : counts.left_out) left_out.push_back({{"choices", choices}, {"rule", rule}});
  const std::vector<int> ranks = ranks_of(space, result.plans);
  for (const SearchedPlan& plan : result.plans) {
    Json json = plan_json(space, plan);
    json["rank"] = ranks[plans.size()];
    if (const auto& need = worst[plans.size()]) {
      json["worst_needed_bytes"] = *need;
      json["worst_verdict"] = name_of(plan.verdict.fit_of(*need));
    }
    plans.push_back(std::move(json));
  }
  Json json = {
      {"hardware", space.hardware.name},         {"world", space.world},      {"certainty", certainty_of(space).text},
      {"tie_factor", certainty_of(space).apart}, {"choices", counts.choices}, {"refused", std::move(refused)},
      {"left_out", std::move(left_out)},         {"plans", std::move(plans)}};
  for (const ChoiceOutcome outcome : all_values<ChoiceOutcome>) json[name_of(outcome)] = counts[outcome];
  if (result.not_below) json["not_below_seconds"] = *result.not_below;
  if (result.least) json["least"] = plan_json(space, *result.least);
  if (result.plans.empty()) return json.dump() + "\n";
  json["kinds"] = {{"data_sharding", kind_json(kinds.data_sharding)},
                   {"hybrid", kind_json(kinds.hybrid)},
                   {"decides", kinds.decision()}};
  return json.dump() + "\n";
}

// The whole configuration of a plan, as read back from `file`, after a comment with its origin.
std::string search_toml(const std::string& file, const SearchSpace& space, const SearchResult& result) {
  const SearchedPlan& best = result.plans.front();
  const Overrides words = words_of(space, best.choice);
  const ResolvedConfig resolved = read_config(file, words);
  std::string text = fmt::format(
      "# Found by weft plan --search from {}: the fastest of {:L} ways to run it on {} ranks of {} that fit.\n"
      "# Simulated: {} a step, {:.0f} tokens/s, MFU {:.1f} %, bubble {:.1f} %.\n"
      "# Memory of the fullest rank: {}.\n"
      "# The same from that file: {}\n\n",
      file, result.counts.choices, space.world, space.hardware.name, format_time(best.time.seconds, false),
      tokens_per_second(space, best), 100.0 * best.time.mfu, 100.0 * best.time.bubble, best.verdict.text(),
      shell_text(words));
  return text + resolved.toml;
}

std::string search_svg(const SearchSpace& space, const std::vector<SearchedPlan>& plans, const std::string& title) {
  ParetoPicture picture{.title = title};
  for (const SearchedPlan& plan : plans) {
    const std::string& schedule = space.orders[plan.choice.order].schedule;
    ParetoMark mark{.series = schedule,
                    .style = style_of_schedule(schedule),
                    .seconds = plan.time.seconds,
                    .bytes = plan.peak.total(),
                    .front = plan.front,
                    .values = values_of(space, plan.choice)};
    mark.tooltip = fmt::format("{}\nstep {}, MFU {:.1f} %, {}\n{}", fmt::join(mark.values, ", "),
                               format_time(plan.time.seconds, false), 100.0 * plan.time.mfu,
                               format_bytes(plan.peak.total()), shell_text(words_of(space, plan.choice)));
    picture.marks.push_back(std::move(mark));
  }
  return to_svg(picture);
}

}  // namespace

SearchResult shown_search(const SearchSpace& space, const SearchOptions& options) {
  ProgressLine line;
  return search_plans(space, options, [&](const SearchProgress& progress) {
    constexpr std::size_t too_many = 10'000;  // more than anyone waits for
    const bool hint = progress.waiting > too_many && !options.seconds;
    line.show([&] { return progress_text(progress) + (hint ? "; --seconds 60 would show the best so far" : ""); });
  });
}

void refuse_empty(const std::string& command, const SearchSpace& space, const SearchResult& result) {
  if (result.counts.choices == 0) {
    fail_request("{}: error: no mesh of {} ranks has the degrees that the search is given", command, space.world);
  }
  if (result.not_below) fail_request("{}: error: no plan was found before the time was up: raise --seconds", command);
  if (!result.least) fail_request("{}: error: no choice can be run; each is refused by a rule or left out", command);
  const Verdict& verdict = result.least->verdict;
  fail_request(
      "{}: error: nothing fits on {} ranks of {}: the least memory found is {} of {} with {}; give it more ranks, "
      "hardware with more memory, or narrower precision.parameters and optimizer.state",
      command, space.world, space.hardware.name, format_bytes(verdict.needed), format_bytes(verdict.memory),
      shell_text(words_of(space, result.least->choice)));
}

CLI::Option* add_plan_search_options(CLI::App& command, PlanSearchRequest& request) {
  CLI::Option* search =
      command
          .add_option(
              "--search", request.axes,
              "find the fastest plans that fit; axes as KEY=VALUE,VALUE: pipeline, data_replicate, data_shard, "
              "context, tensor, expert, expert_tensor, expert_dispatch, microbatch_size, schedule, chunks, strategy, "
              "residency, reduction, recompute")
          ->expected(0, -1);
  const auto needs = [&](CLI::Option* option) { return option->needs(search); };
  needs(command.add_option("--world", request.world, "ranks to search for, in place of the configuration's")
            ->check(positive()));
  needs(command.add_option("--top", request.top, "how many plans to find")->check(positive())->capture_default_str());
  needs(command.add_option("--output", request.output, "write the best as a run file")->check(writable()));
  CLI::Option* pareto =
      needs(command
                .add_option("--pareto", request.pareto,
                            "draw time against memory to this SVG file, with the whole front of unbeaten plans")
                ->check(writable()));
  needs(command.add_option("--front-within", request.front_within, "times the fastest step that the front goes to")
            ->needs(pareto)
            ->check(positive())  // a range lets what is no number pass
            ->check(CLI::Range(1.0, 1e6))
            ->capture_default_str());
  needs(command
            .add_option("--seconds", request.seconds,
                        "stop after as long with the best plans so far; the search then begins with one plan of each "
                        "mesh, likely ones first")
            ->check(positive()));
  needs(command.add_flag("--across-nodes", request.across_nodes, "let tensor groups leave a node"));
  return search;
}

void plan_search(const CLI::App& command, const std::string& file, const Overrides& given,
                 const PlanSearchRequest& request) {
  refuse_replaced_sources(command, file);
  // CLI11 gives an option without values one empty value.
  std::vector<std::string> axes = request.axes;
  std::erase(axes, "");
  const SearchSpace space = search_space(
      file, given, {.world = request.world, .axes = parse_search_axes(axes), .across_nodes = request.across_nodes});
  // A file that only the choices of the search complete is not judged.
  refusal_of([&] { warn_of_planned_card(read_config(file, given).config); });
  const SearchOptions options{.top = request.top,
                              .front_within = request.pareto.empty() ? 0.0 : request.front_within,
                              .threads = host_cores(),
                              .seconds = request.seconds};
  const SearchResult result = shown_search(space, options);
  const WorstNeeds worst = worst_needs(space, result.plans, options.threads);
  // If nothing fits, there is nothing to decide.
  const KindsOfLayout kinds = result.plans.empty() ? KindsOfLayout{} : compare_kinds(space, result, options);
  const std::string title = fmt::format("{} on {} ranks of {}", file, space.world, space.hardware.name);
  if (request.json) {
    fmt::print("{}", search_json(space, result, worst, kinds));
  } else {
    fmt::print("{}\n{}", title, search_account(result.counts));
  }
  if (result.plans.empty()) refuse_empty(plan_command, space, result);
  if (!request.json) {
    fmt::print("\n{}*: no other {}is as fast with less memory, or faster with as much\n{}{}{}\n\nthe fastest{}: {}\n",
               search_table(space, result.plans, worst), result.not_below ? "row " : "that fits ",
               routing_text(result.plans, worst), stop_text(request, result), certainty_of(space).text,
               result.not_below ? " so far" : "", shell_text(words_of(space, result.plans.front().choice)));
    const Config best = read_config(file, words_of(space, result.plans.front().choice)).config;
    for (const std::string& kept : kept_whole_warnings(best)) fmt::print("  {}\n", kept);
    if (space.world > 1) fmt::print("\n{}", kinds_table(space, kinds));
  }
  if (!request.output.empty()) write_result(plan_command, search_toml(file, space, result), request.output);
  if (!request.pareto.empty()) write_result(plan_command, search_svg(space, result.plans, title), request.pareto);
}

}  // namespace weft
