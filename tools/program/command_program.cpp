#include <fmt/format.h>

#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/picture/picture_formats.h"
#include "tools/report/given_costs.h"
#include "tools/report/report_parts.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

// A bare schedule, for commands that need no model.
struct ScheduleOnlyProgram {
  std::string title;  // "zbv, 4 ranks x 2 chunks, 8 microbatches"
  Program program;    // compiled and checked
};

// `key=value` words.
using Words = std::map<std::string, std::string>;

std::optional<int> number_of(const Words& words, const std::string& key) {
  const auto found = words.find(key);
  if (found == words.end()) return std::nullopt;
  const auto number = parsed_number<int>(found->second);
  if (number.value_or(0) >= 1) return number;
  fail_request("weft program: error: {}={} is not a number of at least 1", key, found->second);
}
int needed_number(const Words& words, const std::string& key) {
  if (const auto number = number_of(words, key)) return *number;
  fail_request("weft program: error: --world-only needs {}=N", key);
}

// A user's own order, which sets all counts.
ScheduleOnlyProgram program_of_file(const std::string& path, const Words& words) {
  if (words.contains("microbatch_group")) {
    fail_request("weft program: error: {} has its own order and takes no groups; leave microbatch_group out", path);
  }
  try {
    const UserOrder order = order_from_csv(InputFile(path).text());
    require_same_counts(order,
                        {number_of(words, "pipeline"), number_of(words, "chunks"), number_of(words, "microbatches")});
    return {fmt::format("{}, {} ranks, {} stages, {} microbatches", path, order.ranks.size(), order.stage_ranks.size(),
                        order.microbatches),
            compile(schedule_only_tables(order), order)};
  } catch (const Error& error) {
    fail_request("weft program: error: {}:\n{}", path, error.what());
  }
}

ScheduleOnlyProgram program_of_schedule(const Schedule& row, const Words& words) {
  const OrderInput input{needed_number(words, "pipeline"), number_of(words, "chunks").value_or(1),
                         needed_number(words, "microbatches"), number_of(words, "microbatch_group").value_or(0)};
  row.require_counts(input);
  return {fmt::format("{}, {} ranks{}, {} microbatches{}", row.name, input.ranks,
                      input.chunks > 1 ? fmt::format(" x {} chunks", input.chunks) : "", input.microbatches,
                      input.microbatch_group > 0 ? fmt::format(" in groups of {}", input.microbatch_group) : ""),
          compile(schedule_only_tables(input.ranks, input.ranks * input.chunks, row.placement), row, input)};
}

// pipeline=N microbatches=N [chunks=N] [microbatch_group=N] [schedule=NAME]; the last word of a key wins.
// Throws Error (request).
ScheduleOnlyProgram schedule_only_program(std::span<const std::string> given) {
  Words words;
  for (const std::string& word : given) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == std::string::npos || (key != "pipeline" && key != "chunks" && key != "microbatches" &&
                                        key != "schedule" && key != "microbatch_group")) {
      fail_request(
          "weft program: error: --world-only takes pipeline=N chunks=N microbatches=N microbatch_group=N "
          "schedule=NAME or schedule=FILE.csv, not {}",
          word);
    }
    words[key] = word.substr(equals + 1);
  }
  const auto given_schedule = words.find("schedule");
  const std::string schedule = given_schedule == words.end() ? "1f1b" : given_schedule->second;
  ScheduleOnlyProgram bare = schedule.ends_with(".csv") ? program_of_file(schedule, words)
                                                        : program_of_schedule(find_schedule(schedule), words);
  check(bare.program);
  return bare;
}

constexpr const char* program_command = "weft program";

struct ProgramRequest {
  std::string file, format = "text", output, costs, hardware;
  std::vector<std::string> variants;
  std::optional<int> rank;
  bool json = false, stages_only = false, compute_only = false, world_only = false;

  Detail detail() const {
    return compute_only ? Detail::compute_only : stages_only ? Detail::stages_only : Detail::everything;
  }
};

// One rank's list, with the ranks that a reader needs to name its peers.
struct RankList {
  int rank = 0, pipeline_rank = 0;
  const Program* program = nullptr;
  std::vector<int> stage_ranks;  // world rank by pipeline rank, of this rank's pipeline group

  std::vector<Action> actions(Detail detail) const {
    return at_detail(program->ranks[static_cast<std::size_t>(pipeline_rank)], detail);
  }
};

Json action_json(const RankList& list, const Action& action) {
  const Program& program = *list.program;
  Json entry = {
      {"op", name_of(action.op)}, {"stage", or_null(action.stage)}, {"microbatch", or_null(action.microbatch)}};
  entry["segment"] = action.segment ? Json(program.segments[static_cast<std::size_t>(*action.segment)].name) : nullptr;
  entry["unit"] = action.unit ? Json(program.units[static_cast<std::size_t>(*action.unit)].name) : nullptr;
  entry["peer"] = action.peer ? Json(list.stage_ranks[static_cast<std::size_t>(*action.peer)]) : nullptr;
  entry["group"] = nullptr;
  if (action.unit) entry["group"] = name_of(program.units[static_cast<std::size_t>(*action.unit)].group);
  if (action.peer) entry["group"] = name_of(Group::pp);
  if (action.op == Op::gradient_norm) entry["group"] = name_of(Group::world);
  entry["bytes"] = action.bytes;
  entry["lane"] = name_of(lane_of(program, action));
  entry["overlapped"] = action.overlapped;
  entry["part"] = action.part.count > 1 ? Json(fmt::format("{}/{}", action.part.index + 1, action.part.count)) : Json();
  return entry;
}

// The order of all pipeline ranks as a picture in time.
std::string picture(const Program& program) {
  Program order = program;
  for (auto& rank : order.ranks) rank = at_detail(rank, Detail::compute_only);
  return "time runs to the right; a forward (microbatch) takes one unit, a backward ([microbatch]) two; split,\n"
         "an input gradient ([microbatch]) and a weight gradient (<microbatch>) one each; an overlapped pair hands on\n"
         "what both made when both are over, and its two are drawn one after the other\n" +
         format_timeline(order);
}

std::string render(const std::vector<RankList>& lists, const std::string& format, Detail detail) {
  std::string text;
  if (format == "json") {
    const auto actions_of = [&](const RankList& list) {
      return json_list(list.actions(detail), [&](const Action& action) { return action_json(list, action); });
    };
    return Json{{"ranks", json_list(lists, actions_of)}}.dump() + "\n";
  }
  for (const RankList& list : lists) {
    const std::vector<Action> actions = list.actions(detail);
    if (format == "csv") {
      text += format_actions(*list.program, actions, ",") + "\n";
    } else {
      text += fmt::format("rank {} (pp {}), {} actions\n  {}\n", list.rank, list.pipeline_rank, actions.size(),
                          format_actions(*list.program, actions, " "));
    }
  }
  return text;
}

// As text, one rank is a list; the computations of all ranks are a picture.
bool draws_order(const ProgramRequest& request, const std::string& format) {
  return format == "text" && request.compute_only && !request.rank;
}

// World ranks whose lists are printed. An order as CSV is that of one pipeline, a line for each of its ranks: the form
// that pipeline.schedule reads (order_csv.h).
std::vector<int> listed_ranks(const Mesh& mesh, const ProgramRequest& request, const std::string& format) {
  if (request.rank) return {*request.rank};
  if (format == "csv" && request.compute_only) return mesh.group_of(Group::pp, 0);
  std::vector<int> all(static_cast<std::size_t>(mesh.world()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Throws Error (request) if the lists of `ranks` ranks are too long to read. `program` has the lists of one pipeline.
void require_printable(const Program& program, std::int64_t ranks) {
  constexpr std::int64_t most_actions = std::int64_t{1} << 21;
  std::int64_t actions = 0;
  for (const auto& list : program.ranks) actions += std::ssize(list);
  actions *= ranks / std::ssize(program.ranks);
  if (actions <= most_actions) return;
  fail_request("weft program: error: the lists of {} ranks have {} actions, and at most {} are printed: give --rank",
               ranks, actions, most_actions);
}

// Words without an option describe the bare schedule; words of `more` come after them.
ScheduleOnlyProgram schedule_only_program_given_to(const CLI::App& command, const ProgramRequest& request,
                                                   const std::string& more = "") {
  std::vector<std::string> words = command.remaining();
  if (!request.file.empty()) words.insert(words.begin(), request.file);
  for (std::string& word : words_of(more)) words.push_back(std::move(word));
  return schedule_only_program(words);
}

void require_rank(int rank, int ranks) {
  if (rank >= 0 && rank < ranks) return;
  fail_request("weft program: error: rank {} is not one of the {} ranks", rank, ranks);
}

// The program of a rank of a run (default: the first rank), with drawing options and costs.
struct ConfiguredPicture {
  std::optional<ResolvedRun> run;  // absent for a bare schedule
  Coordinates at;
  Program program;
  PictureOptions options;
  StepCosts costs;
};
ConfiguredPicture configured_picture(const CLI::App& command, const ProgramRequest& request, const CostSource& costs,
                                     const std::string& more) {
  Overrides overrides = overrides_given_to(command, {}, request.file);
  for (std::string& word : words_of(more)) overrides.push_back(std::move(word));
  // Warnings on the configuration are printed once only.
  const Config given =
      (more.empty() ? read_config_given_to(command, request.file) : read_config(request.file, overrides)).config;
  if (more.empty()) warn_of_planned_card(given);
  ResolvedRun run(on_hardware(given));
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  if (request.rank) require_rank(*request.rank, mesh.world());
  const Coordinates at = mesh.coordinates(request.rank.value_or(0));
  PictureOptions options{.title = request.file};
  for (const std::string& word : overrides) options.title += " " + word;
  if (request.rank) options.rank = at.pp;
  Program program = step_program(run, at);
  StepCosts step_costs = costs.costs_of(config, mesh, program);
  return {std::move(run), at, std::move(program), options, std::move(step_costs)};
}

// Costs of a bare schedule come from words, because it has no sizes to model.
ConfiguredPicture bare_picture(const CLI::App& command, const ProgramRequest& request, const std::string& more) {
  ScheduleOnlyProgram bare = schedule_only_program_given_to(command, request, more);
  PictureOptions options{.title = bare.title, .rank = request.rank};
  if (request.rank) require_rank(*request.rank, static_cast<int>(bare.program.ranks.size()));
  StepCosts costs{costs_from_words(program_command, bare.program, request.costs), LaneChannels::own(), true};
  return {std::nullopt, {}, std::move(bare.program), options, std::move(costs)};
}

// For a bare schedule only the program's tables give memory; for a run a dry run does.
Picture drawn(ConfiguredPicture next) {
  const auto& [costs, channels, unit_time] = next.costs;
  if (!next.run) return picture_of(next.program, simulate_step(next.program, costs, channels), next.options);
  const ForecastStep simulated = simulate_run(*next.run, std::move(next.program), costs, channels, next.at);
  return picture_of(simulated.program, simulated.step, next.options);
}

// A picture of the given program and one per variant.
std::string pictures(const CLI::App& command, const ProgramRequest& request, const std::string& format) {
  std::vector<std::string> variants = {""};
  variants.insert(variants.end(), request.variants.begin(), request.variants.end());
  // Without costs and hardware, a picture has unit times.
  const bool unit_times = request.costs.empty() && request.hardware.empty();
  std::optional<CostSource> source;
  if (!request.world_only) source.emplace(program_command, unit_times ? "forward=1" : request.costs, request.hardware);
  std::vector<Picture> pictures;
  std::size_t boxes = 0;
  for (const std::string& variant : variants) {
    ConfiguredPicture next = request.world_only ? bare_picture(command, request, variant)
                                                : configured_picture(command, request, *source, variant);
    next.options.detail = request.detail();
    next.options.unit_time = next.costs.unit_time;
    boxes += least_boxes(next.program, next.costs.costs, next.options);
    require_drawable(format, boxes);
    pictures.push_back(drawn(std::move(next)));
  }
  return render_pictures(program_command, pictures, format);
}

void run_program(const CLI::App& command, const ProgramRequest& request) {
  std::string format = request.json ? "json" : request.format;
  const bool draws = is_picture_format(format);
  if (!draws && format != "text" && format != "csv" && format != "json") {
    fail_request("weft program: error: --format takes text, csv, json, svg, html and trace, not {}", format);
  }
  if (!draws && (!request.variants.empty() || !request.costs.empty() || !request.hardware.empty())) {
    fail_request("weft program: error: --variant, --costs and --hardware go with --format svg, html and trace, not {}",
                 format);
  }
  if (request.world_only && !request.hardware.empty()) {
    fail_request("weft program: error: --hardware is for CONFIG: a bare schedule has no sizes; give --costs in words");
  }
  if (!request.world_only && request.file.empty()) {
    fail_request("weft program: error: give CONFIG, or --world-only and a schedule");
  }
  if (draws) return write_result(program_command, pictures(command, request, format), request.output);
  std::vector<RankList> lists;
  if (request.world_only) {
    const Program program = schedule_only_program_given_to(command, request).program;
    if (draws_order(request, format)) return write_result(program_command, picture(program), request.output);
    std::vector<int> ranks(program.ranks.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    if (request.rank) require_rank(*request.rank, static_cast<int>(ranks.size()));
    for (const int rank : request.rank ? std::vector{*request.rank} : ranks) {
      lists.push_back({rank, rank, &program, ranks});
    }
    return write_result(program_command, render(lists, format, request.detail()), request.output);
  }

  const Config given = read_config_given_to(command, request.file).config;
  warn_of_planned_card(given);
  const ResolvedRun run(on_hardware(given));
  const Mesh& mesh = run.mesh();
  if (request.rank) require_rank(*request.rank, mesh.world());
  StepPrograms programs(run);
  const std::vector<int> ranks = listed_ranks(mesh, request, format);
  if (!request.rank) {
    const Program& first = programs.of_first_rank();
    if (draws_order(request, format)) return write_result(program_command, picture(first), request.output);
    require_printable(first, std::ssize(ranks));
  }
  for (const int rank : ranks) {
    const Coordinates at = mesh.coordinates(rank);
    lists.push_back({rank, at.pp, &programs.of(at), mesh.group_of(Group::pp, rank)});
  }
  write_result(program_command, render(lists, format, request.detail()), request.output);
}

}  // namespace

void add_program_command(CLI::App& program) {
  const auto [command, request] = add_command<ProgramRequest>(
      program, "program", "actions of each rank in a step, before anything runs", run_program);
  add_config_arguments(command, request.file);
  command.add_option("--rank", request.rank, "only this rank");
  command.add_option("--format", request.format, "text, csv, json, svg, html or trace")->capture_default_str();
  command.add_flag("--json", request.json, "the same as --format json");
  command.add_option("--output", request.output, "write to this file instead of standard output")->check(writable());
  command.add_flag("--stages-only", request.stages_only, "merge segments and units per stage");
  command.add_flag(
      "--compute-only", request.compute_only,
      "F, B, I and W of stages, nothing else; with --format csv a schedule's file, a line a pipeline rank");
  command.add_flag("--world-only", request.world_only,
                   "a bare schedule: pipeline=N microbatches=N [chunks=N] [microbatch_group=N] [schedule=NAME], or "
                   "schedule=FILE.csv alone");
  command.add_option(
      "--costs", request.costs,
      "of a picture, what a rank takes for a microbatch: forward=1 backward_input=1 backward_weight=1; for "
      "all its units: gather=0 reduce=0; and transfer=0 norm=0 step=0, in one word or quoted; of CONFIG also a table "
      "FILE.toml, or the directory of a run with traces, in seconds");
  command
      .add_option("--hardware", request.hardware,
                  "of a picture of CONFIG, costs modelled for a card that weft hardware lists")
      ->check(not_empty());
  command
      .add_option("--variant", request.variants,
                  "one more picture on the page, with these words or keys changed: \"schedule=zbv chunks=2\"")
      ->allow_extra_args(false);
}

}  // namespace weft
