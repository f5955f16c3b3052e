#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/program/unit_rows.h"
#include "tools/report/report_parts.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

UnitPrecision stored_as(const UnitRow& row) {
  return row.replicated() ? UnitPrecision{} : row.unit.precision;
}

Json moves_json(const UnitRow& row) {
  Json moves = Json::array();
  for (const ProgramCollective& move : row.moves) {
    moves.push_back({{"during", name_of(move.during)},
                     {"operation", name_of(move.op)},
                     {"group", name_of(move.group)},
                     {"bytes", move.bytes}});
  }
  return moves;
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
  Json units = Json::array();
  for (const UnitRow& row : rows) units.push_back(unit_json(row));
  fmt::print("{}\n", Json{{"units", units}}.dump());
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
               mebibytes(row.byte_steps.unsharded_parameters), mebibytes(row.byte_steps.unsharded_gradients));
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

}  // namespace

void add_units_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("units", "shard units: parameters that travel together, where, and why");
  const auto file = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false), owners = std::make_shared<bool>(false);
  add_config_arguments(*command, *file)->required();
  command->add_flag("--json", *json, "print one JSON document");
  command->add_flag("--owners", *owners, "the owner of each row of every parameter instead of the units");
  command->callback([command, file, json, owners] {
    const Config given = read_config_given_to(*command, *file).config;
    warn_of_kept_whole(given);
    const ResolvedRun run(given);
    if (*owners) return print_owners(run.config(), *json);
    const auto rows = unit_rows(run);
    for (const UnitRow& row : rows) {
      const std::string warning = family_warning(row.unit.plan);
      if (!warning.empty()) print_warnings(run.config(), {warning});
    }
    *json ? print_json(rows) : print_text(rows);
  });
}

}  // namespace weft
