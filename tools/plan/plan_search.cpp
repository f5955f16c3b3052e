#include "tools/plan/plan_search.h"

#include <fmt/format.h>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

constexpr const char* plan_command = "weft plan";

std::string progress_text(const SearchProgress& progress) {
  const SearchCounts& counts = progress.counts;
  const std::string best =
      progress.best_seconds ? fmt::format(", best {}", format_time(*progress.best_seconds, false)) : std::string();
  return fmt::format("{} groups of choices to look at, {} planned, {} do not fit{}", progress.waiting, counts.planned,
                     counts.static_bytes + counts.held_bytes + counts.unfit, best);
}

}  // namespace

SearchResult shown_search(const SearchSpace& space, const SearchOptions& options) {
  ProgressLine line;
  return search_plans(space, options,
                      [&](const SearchProgress& progress) { line.show([&] { return progress_text(progress); }); });
}

void refuse_empty(const std::string& command, const SearchSpace& space, const SearchResult& result) {
  if (result.counts.choices == 0) {
    fail_request("{}: error: no mesh of {} ranks has the degrees that the search is given", command, space.world);
  }
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
  const SearchOptions options{
      .top = request.top, .front_within = request.pareto.empty() ? 0.0 : request.front_within, .threads = host_cores()};
  const SearchResult result = shown_search(space, options);
  // If nothing fits, there is nothing to decide.
  const KindsOfLayout kinds = result.plans.empty() ? KindsOfLayout{} : compare_kinds(space, result, options.threads);
  const std::string title = fmt::format("{} on {} ranks of {}", file, space.world, space.hardware.name);
  if (request.json) {
    fmt::print("{}", search_json(space, result, kinds));
  } else {
    fmt::print("{}\n{}", title, search_account(result.counts));
  }
  if (result.plans.empty()) refuse_empty(plan_command, space, result);
  if (!request.json) {
    fmt::print("\n{}*: no other that fits is as fast with less memory, or faster with as much\n{}\n\nthe fastest: {}\n",
               search_table(space, result.plans), certainty_of(space).text,
               shell_text(words_of(space, result.plans.front().choice)));
    const Config best = read_config(file, words_of(space, result.plans.front().choice)).config;
    for (const std::string& kept : kept_whole_warnings(best)) fmt::print("  {}\n", kept);
    if (space.world > 1) fmt::print("\n{}", kinds_table(space, kinds));
  }
  if (!request.output.empty()) write_result(plan_command, search_toml(file, space, result), request.output);
  if (!request.pareto.empty()) write_result(plan_command, search_svg(space, result.plans, title), request.pareto);
}

}  // namespace weft
