#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "parallel/pipeline/check.h"
#include "parallel/pipeline/passes.h"
#include "parallel/pipeline/text.h"
#include "parallel/pipeline/timeline.h"
#include "parallel/runtime/error.h"
#include "tools/commands.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

struct ProgramRequest {
  std::string file, format = "text", output;
  std::optional<int> rank;
  bool json = false, stages_only = false, compute_only = false, world_only = false;

  Detail detail() const {
    return compute_only ? Detail::compute_only : stages_only ? Detail::stages_only : Detail::everything;
  }
};

// One rank's list, with what a reader needs to name its peers.
struct RankList {
  int rank = 0, pipeline_rank = 0;
  const Program* program = nullptr;
  std::vector<Action> actions;
  std::vector<int> stage_ranks;  // world rank by pipeline rank, of this rank's pipeline group
};

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

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

std::string render(const std::vector<RankList>& lists, const std::string& format) {
  std::string text;
  if (format == "json") {
    Json ranks = Json::array();
    for (const RankList& list : lists) {
      Json actions = Json::array();
      for (const Action& action : list.actions) actions.push_back(action_json(list, action));
      ranks.push_back(std::move(actions));
    }
    return Json{{"ranks", std::move(ranks)}}.dump() + "\n";
  }
  for (const RankList& list : lists) {
    if (format == "csv") {
      text += format_actions(*list.program, list.actions, ",") + "\n";
    } else {
      text += fmt::format("rank {} (pp {}), {} actions\n  {}\n", list.rank, list.pipeline_rank, list.actions.size(),
                          format_actions(*list.program, list.actions, " "));
    }
  }
  return text;
}

// Text of one rank is its list; of all ranks' computations, the picture.
std::string text(const std::vector<RankList>& lists, const Program& program, const ProgramRequest& request,
                 const std::string& format) {
  const bool draws = format == "text" && request.compute_only && !request.rank;
  return draws ? picture(program) : render(lists, format);
}

// `key=value` words of --world-only.
using Words = std::map<std::string, std::string>;

std::optional<int> bare_number(const Words& words, const std::string& key) {
  const auto found = words.find(key);
  if (found == words.end()) return std::nullopt;
  int value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, value);
  if (error != std::errc() || stop != end || value < 1) {
    fail_request("weft program: error: {}={} is not a number of at least 1", key, found->second);
  }
  return value;
}
int needed_number(const Words& words, const std::string& key) {
  if (const auto number = bare_number(words, key)) return *number;
  fail_request("weft program: error: --world-only needs {}=N", key);
}

Words bare_words(const CLI::App& command, const std::string& first) {
  Words words;
  std::vector<std::string> given = command.remaining();
  if (!first.empty()) given.insert(given.begin(), first);
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
  return words;
}

// A user's own order, which sets all counts.
Program program_of_file(const std::string& path, const Words& words) {
  if (words.contains("microbatch_group")) {
    fail_request("weft program: error: {} has its own order and takes no groups; leave microbatch_group out", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) fail_request("weft program: error: {} cannot be read, or is empty", path);
  try {
    const UserOrder order = order_from_csv(text.view());
    require_same_counts(
        order, {bare_number(words, "pipeline"), bare_number(words, "chunks"), bare_number(words, "microbatches")});
    return compile(bare_tables(order), order);
  } catch (const Error& error) {
    fail_request("weft program: error: {}:\n{}", path, error.what());
  }
}

Program bare_program(const CLI::App& command, const std::string& first) {
  const Words words = bare_words(command, first);
  const auto given = words.find("schedule");
  const std::string schedule = given == words.end() ? "1f1b" : given->second;
  if (schedule.ends_with(".csv")) {
    Program program = program_of_file(schedule, words);
    check(program);
    return program;
  }
  const OrderInput input{needed_number(words, "pipeline"), bare_number(words, "chunks").value_or(1),
                         needed_number(words, "microbatches"), bare_number(words, "microbatch_group").value_or(0)};
  const Schedule& row = find_schedule(schedule);
  Program program = compile(bare_tables(input.ranks, input.ranks * input.chunks, row.placement), row, input);
  check(program);
  return program;
}

void write(const std::string& text, const std::string& output) {
  if (output.empty()) {
    fmt::print("{}", text);
    return;
  }
  std::ofstream file(output);
  if (!(file << text) || !file.flush()) fail_request("weft program: error: {} cannot be written", output);
}

void run_program(const CLI::App& command, const ProgramRequest& request) {
  std::string format = request.json ? "json" : request.format;
  if (format != "text" && format != "csv" && format != "json") {
    fail_request("weft program: error: this version writes text, csv and json, not {}", format);
  }
  std::vector<RankList> lists;
  if (request.world_only) {
    const Program program = bare_program(command, request.file);
    std::vector<int> ranks(program.ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
    for (int rank : ranks) {
      if (request.rank && *request.rank != rank) continue;
      lists.push_back(
          {rank, rank, &program, at_detail(program.ranks[static_cast<std::size_t>(rank)], request.detail()), ranks});
    }
    return write(text(lists, program, request, format), request.output);
  }
  if (request.file.empty()) fail_request("weft program: error: give CONFIG, or --world-only and a schedule");

  const Config config = read_config_given_to(command, request.file).config;
  const Mesh mesh(config.parallelism);
  if (request.rank && (*request.rank < 0 || *request.rank >= mesh.world())) {
    fail_request("weft program: error: rank {} is not one of the {} ranks", *request.rank, mesh.world());
  }
  // Sizes depend on the tensor and expert position only; ranks that agree there share one program.
  std::map<std::pair<int, int>, Program> programs;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (request.rank && *request.rank != rank) continue;
    const Coordinates at = mesh.coordinates(rank);
    auto found = programs.find({at.tp, at.ep});
    if (found == programs.end()) {
      found = programs.emplace(std::pair(at.tp, at.ep), step_program(config, mesh, at)).first;
    }
    const Program& program = found->second;
    lists.push_back({rank, at.pp, &program, at_detail(program.ranks[static_cast<std::size_t>(at.pp)], request.detail()),
                     mesh.group_of(Group::pp, rank)});
  }
  write(text(lists, programs.begin()->second, request, format), request.output);
}

}  // namespace

void add_program_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("program", "what each rank does in a step, before anything runs");
  const auto request = std::make_shared<ProgramRequest>();
  add_config_arguments(*command, request->file);
  command->add_option("--rank", request->rank, "only this rank");
  command->add_option("--format", request->format, "text, csv or json")->capture_default_str();
  command->add_flag("--json", request->json, "the same as --format json");
  command->add_option("--output", request->output, "write to this file instead of standard output");
  command->add_flag("--stages-only", request->stages_only, "merge segments and units per stage");
  command->add_flag("--compute-only", request->compute_only, "F, B, I, W and overlapped pairs of stages, nothing else");
  command->add_flag("--world-only", request->world_only,
                    "a bare schedule: pipeline=N microbatches=N [chunks=N] [microbatch_group=N] [schedule=NAME], or "
                    "schedule=FILE.csv alone");
  command->callback([command, request] { run_program(*command, *request); });
}

}  // namespace weft
