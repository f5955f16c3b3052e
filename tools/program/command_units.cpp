// `weft units`: the shard units of a configuration, and with --owners the rows that each rank stores, updates and
// saves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "parallel/shard/replicated.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/config/update_groups.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/verify_step.h"
#include "trainer/resolve/chosen_timing.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// Plain values of a shard unit.
struct UnitRow {
  int stage = 0;
  PlannedUnit unit;
  std::vector<ProgramCollective> moves = {};     // payloads of the unit's gathers and reductions
  std::string wrap = {};                         // how its family is wrapped; empty for replicated parameters
  std::map<UpdateGroup, UpdateRule> rules = {};  // rules that update its parameters; empty if frozen
  BucketBytes byte_steps = {};                   // of a step (live_integral)

  bool replicated() const { return unit.plan.replicated(); }
  // Without padding.
  std::int64_t parameters() const {
    return replicated() ? bytes() / size_of(DType::float32) : unit.layout.parameter_size();
  }
  // Of all stored shards, padding included.
  std::int64_t bytes() const {
    return replicated() ? ReplicatedParameters::bytes(unit.plan.parameters)
                        : unit.layout.unsharded_size() * size_of(unit.precision.stored);
  }
  std::int64_t padding() const { return replicated() ? 0 : unit.layout.padding(); }
  bool whole() const { return replicated() || unit.layout.shards == 1; }
};

std::string wrap_of(const Config& config, const UnitPlan& plan) {
  if (plan.replicated()) return {};
  // Other families are wrapped into the stage's root unit.
  return plan.family == Family::root ? "root" : to_string(config.shard_by_family.at(plan.family).wrap);
}

// Whether a group has one rank, so that nothing is communicated. Rules ensure that an island has several ranks.
bool stays_on_a_rank(const Mesh& mesh, Group group) {
  if (group == Group::dp_island || group == Group::edp_island || group == Group::tied) return false;
  return mesh.group_of(group, 0).size() == 1;
}

// Units of all stages, each as the stage's first rank holds it: parameters are those of the rank's tensor and expert
// slice.
std::vector<UnitRow> unit_rows(const ResolvedRun& run) {
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  const ResolvedGroups groups = resolved_groups(config);
  std::vector<UnitRow> rows;
  const std::vector<int> ranks = stage_ranks(config);
  const std::vector<StageBlocks> layout = stage_layout(config);
  for (int stage = 0; stage < config.stages(); ++stage) {
    const int rank = ranks[static_cast<std::size_t>(stage)];
    const Coordinates at = mesh.coordinates(mesh.rank_at(rank, 0, 0, 0, 0));
    for (PlannedUnit& unit : plan_stage(config, mesh, at, stage, layout).units) {
      UnitRow row{stage, std::move(unit)};
      row.wrap = wrap_of(config, row.unit.plan);
      if (!row.unit.frozen) {
        for (const ParameterSpec& parameter : row.unit.plan.parameters) {
          const UpdateGroup group = update_group_of(parameter);
          row.rules[group] = groups[group].rule;
        }
      }
      rows.push_back(std::move(row));
    }
  }
  // The program lists the same units in the same order.
  const Program program = step_program(run, mesh.coordinates(0));
  std::vector<LiveIntegral> integrals;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) integrals.push_back(live_integral(program, rank));
  for (std::size_t u = 0; u < rows.size(); ++u) {
    for (const ProgramCollective& move : program.units[u].collectives) {
      if (!stays_on_a_rank(mesh, move.group)) rows[u].moves.push_back(move);
    }
    const int rank = ranks[static_cast<std::size_t>(rows[u].stage)];
    rows[u].byte_steps = integrals[static_cast<std::size_t>(rank)].unit_byte_steps[u];
  }
  return rows;
}

// "reshard_after_use", "window 2", "island 4": how long full parameters stay.
std::string residency_text(const UnitPolicy& policy) {
  if (policy.residency == Residency::window) return fmt::format("window {}", policy.window_stages);
  if (policy.residency == Residency::island) return fmt::format("island {}", policy.island_ranks);
  return std::string(name_of(policy.residency));
}

// "last_microbatch", "each_microbatch", "every 3": when gradients are reduced.
std::string reduction_text(const UnitPolicy& policy) {
  if (policy.reduce_every > 1) return fmt::format("every {}", policy.reduce_every);
  return policy.reduce_every == 0 ? "last_microbatch" : "each_microbatch";
}

// The whole policy of the unit in one sentence.
std::string policy_text(const UnitRow& row) {
  const UnitPolicy& policy = row.unit.policy;
  if (row.unit.plan.family == Family::helpers) return "without gradient";
  const std::string reduction = row.unit.frozen ? "frozen" : fmt::format("reduction {}", reduction_text(policy));
  if (row.replicated()) return reduction;
  const std::string backward = policy.backward_prefetch == BackwardPrefetch::pre
                                   ? ""
                                   : fmt::format(", backward_prefetch {}", name_of(policy.backward_prefetch));
  return fmt::format("{}, residency {}, lookahead {}{}{}, {}{}",
                     row.whole() ? std::string("whole") : fmt::format("sharded over {}", row.unit.layout.shards),
                     residency_text(policy), policy.lookahead, backward, policy.within_stage ? " within its stage" : "",
                     reduction, policy.accumulate_sharded ? ", accumulation sharded" : "");
}

UnitPrecision stored_as(const UnitRow& row) {
  return row.replicated() ? UnitPrecision{} : row.unit.precision;
}

Json moves_json(const UnitRow& row) {
  return json_list(row.moves, [](const ProgramCollective& move) {
    return Json{{"during", name_of(move.during)},
                {"operation", name_of(move.op)},
                {"group", name_of(move.group)},
                {"bytes", move.bytes}};
  });
}

// Values that the policy leaves open for the unit are null.
Json unit_json(const UnitRow& row) {
  const PlannedUnit& unit = row.unit;
  const UnitPrecision precision = stored_as(row);
  Json entry = {{"name", unit.plan.name},
                {"family", name_of(unit.plan.family)},
                {"stage", row.stage},
                {"parameters", row.parameters()},
                {"bytes", row.bytes()},
                {"padding", row.padding()},
                {"group", name_of(unit.shard_group)},
                {"placement", row.whole() ? "replicated" : "sharded"},
                {"policy", policy_text(row)},
                {"why", unit.plan.why},
                {"why_kept", unit.policy.reason}};
  entry["residency"] = row.replicated() ? Json(nullptr) : Json(residency_text(unit.policy));
  entry["lookahead"] = row.replicated() ? Json(nullptr) : Json(unit.policy.lookahead);
  entry["reduction"] = unit.frozen ? Json(nullptr) : Json(reduction_text(unit.policy));
  entry["accumulation"] = unit.frozen ? Json(nullptr) : Json(unit.policy.accumulate_sharded ? "sharded" : "unsharded");
  entry["precision"] = {{"parameters", name_of(precision.stored)},
                        {"compute", name_of(precision.compute)},
                        {"reduction", name_of(precision.reduction)}};
  entry["wrap"] = row.wrap.empty() ? Json(nullptr) : Json(row.wrap);
  entry["frozen"] = unit.frozen;
  entry["optimizer"] = Json::object();
  for (const auto& [group, rule] : row.rules) entry["optimizer"][std::string(name_of(group))] = name_of(rule);
  entry["moves"] = moves_json(row);
  entry["byte_steps"] = unit_bytes_json(row.byte_steps);
  return entry;
}

void print_json(const std::vector<UnitRow>& rows) {
  fmt::print("{}\n", Json{{"units", json_list(rows, unit_json)}}.dump());
}

// "UNSHARD all_gather dp_shard 0.19 MiB": each action with all its collectives.
std::string moves_text(const UnitRow& row) {
  std::vector<std::string> parts;
  for (const ProgramCollective& move : row.moves) {
    const std::string_view action = name_of(move.during);
    const bool again = !parts.empty() && parts.back().starts_with(fmt::format("{} ", action));
    const std::string text =
        fmt::format("{} {} {:.3f} MiB", name_of(move.op), name_of(move.group), mebibytes(move.bytes));
    if (again) {
      parts.back() += ", " + text;
    } else {
      parts.push_back(fmt::format("{} {}", action, text));
    }
  }
  return parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, "; "));
}

std::string rules_text(const UnitRow& row) {
  if (row.unit.frozen) return "not stepped";
  std::vector<std::string> parts;
  for (const auto& [group, rule] : row.rules) parts.push_back(fmt::format("{} by {}", name_of(group), name_of(rule)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void print_text(const std::vector<UnitRow>& rows) {
  constexpr auto line = "{:<18} {:<10} {:>5} {:>12} {:>12} {:>8} {:<10} {:<10}\n";
  fmt::print(line, "unit", "family", "stage", "parameters", "MiB stored", "padding", "group", "placement");
  for (const UnitRow& row : rows) {
    const UnitPrecision precision = stored_as(row);
    fmt::print(line, row.unit.plan.name, name_of(row.unit.plan.family), row.stage, row.parameters(),
               fmt::format("{:.3f}", mebibytes(row.bytes())), row.padding(), name_of(row.unit.shard_group),
               row.whole() ? "replicated" : "sharded");
    fmt::print("    policy    {}\n", policy_text(row));
    fmt::print("    dtypes    {} stored, {} computed in, {} reduced in{}; stepped: {}\n", name_of(precision.stored),
               name_of(precision.compute), name_of(precision.reduction),
               row.wrap.empty() ? "" : fmt::format("; wrap {}", row.wrap), rules_text(row));
    fmt::print("    moves     {}\n", moves_text(row));
    fmt::print("    live      {:.3f} MiB x computing actions of full parameters, {:.3f} of unsharded gradients\n",
               mebibytes(row.byte_steps[Bucket::unsharded_parameters]),
               mebibytes(row.byte_steps[Bucket::unsharded_gradients]));
    fmt::print("    together  {}\n", row.unit.plan.why);
    fmt::print("    kept      {}\n", row.unit.policy.reason);
  }
  std::int64_t sharded = 0, parameters = 0, padding = 0;
  for (const UnitRow& row : rows) {
    if (row.whole()) continue;
    ++sharded;
    parameters += row.parameters();
    padding += row.padding();
  }
  if (sharded == 0) return;
  fmt::print("{} sharded units of {} parameters and {} elements of padding ({:.3f} %)\n", sharded, parameters, padding,
             100.0 * static_cast<double>(padding) / static_cast<double>(parameters));
}

// In the order of the model, then by replica, then by row.
OwnerTable sorted(OwnerTable table, const std::vector<GlobalParameter>& parameters) {
  std::map<std::string_view, std::size_t> place;
  for (const GlobalParameter& parameter : parameters) place.emplace(parameter.name, place.size());
  std::ranges::stable_sort(table, {}, [&](const OwnedRange& range) {
    const auto found = place.find(range.parameter);
    const std::size_t index = found == place.end() ? place.size() : found->second;
    return std::tuple(index, range.replica, range.row_begin, range.column_begin);
  });
  return table;
}

void print_json(const OwnerTable& table, const std::vector<OwnershipFault>& faults) {
  const Json owners = json_list(table, [](const OwnedRange& range) {
    return Json{{"parameter", range.parameter},
                {"replica", range.replica},
                {"rank", range.rank},
                {"row_begin", range.row_begin},
                {"rows", range.rows},
                {"column_begin", range.column_begin},
                {"columns", range.columns},
                {"group", range.group},
                {"optimizer", range.optimizer.empty() ? Json(nullptr) : Json(range.optimizer)}};
  });
  fmt::print("{}\n", Json{{"owners", owners}, {"faults", json_list(faults, &OwnershipFault::message)}}.dump());
}

void print_text(const OwnerTable& table) {
  BenchTable rows{{"parameter", "replica", "rank", "rows", "columns", "group", "optimizer"}};
  const auto range_text = [](std::int64_t begin, std::int64_t count) {
    return fmt::format("{} to {}", begin, begin + count - 1);
  };
  for (const OwnedRange& range : table) {
    rows.add(range.parameter, range.replica, range.rank, range_text(range.row_begin, range.rows),
             range_text(range.column_begin, range.columns), range.group,
             range.optimizer.empty() ? "none: frozen" : range.optimizer);
  }
  fmt::print("{}", aligned_text(rows));
}

// Prints which rank owns which rows of every parameter, and whether every element is owned exactly once. Throws Error
// (failure) listing every element that is not.
void print_owners(const Config& config, bool json) {
  const Mesh mesh(config.parallelism);
  const auto parameters = global_parameters(config, mesh);
  const OwnerTable table = sorted(owner_table(config, mesh), parameters);
  std::int64_t elements = 0;
  for (const GlobalParameter& parameter : parameters) elements += parameter.rows * parameter.columns;
  json ? print_json(table, find_ownership_faults(table, parameters)) : print_text(table);
  std::fflush(stdout);  // before any output on standard error
  require_sound_ownership(table, parameters);
  if (json) return;
  fmt::print("every element of {} parameters, {} elements, is owned exactly once in each of their replicas\n",
             parameters.size(), elements);
}

struct UnitsRequest {
  std::string file;
  bool json = false, owners = false;
};

void print_units(const CLI::App& command, const UnitsRequest& request) {
  const Config given = read_config_given_to(command, request.file).config;
  print_warnings(given, kept_whole_warnings(given));
  warn_of_planned_card(given);
  const ResolvedRun run(on_hardware(given));
  if (request.owners) return print_owners(run.config(), request.json);
  const auto rows = unit_rows(run);
  for (const UnitRow& row : rows) {
    const std::string warning = family_warning(row.unit.plan);
    if (!warning.empty()) print_warnings(run.config(), {warning});
  }
  request.json ? print_json(rows) : print_text(rows);
}

}  // namespace

void add_units_command(CLI::App& program) {
  const auto [command, request] = add_command<UnitsRequest>(
      program, "units", "shard units: parameters that travel together, where, and why", print_units);
  add_config_arguments(command, request.file)->required();
  command.add_flag("--json", request.json, "print one JSON document");
  command.add_flag("--owners", request.owners, "the owner of each row of every parameter instead of the units");
}

}  // namespace weft
