#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "parallel/shard/replicated.h"
#include "tools/commands.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

struct UnitRow {
  std::string name, family, group, placement, policy, why;
  int stage = 0;
  std::int64_t parameters = 0, bytes = 0, padding = 0;
};

std::string policy_text(const PlannedUnit& unit) {
  const std::string reduction = unit.policy.reduce_every == 0 ? "reduced once a step"
                                : unit.policy.reduce_every == 1
                                    ? "reduced each microbatch"
                                    : fmt::format("reduced every {} microbatches", unit.policy.reduce_every);
  if (unit.plan.replicated()) return reduction;
  return fmt::format("{}, residency {}, lookahead {}, {}", unit.layout.shards > 1 ? "sharded" : "whole",
                     name_of(unit.policy.residency), unit.policy.lookahead, reduction);
}

// Units of all stages as the first rank of each stage holds them; parameters are those of its tensor and expert slice.
std::vector<UnitRow> unit_rows(const Config& config) {
  const Mesh mesh(config.parallelism);
  std::vector<UnitRow> rows;
  for (int stage = 0; stage < config.parallelism.pipeline; ++stage) {
    const PlannedStage planned = plan_stage(config, mesh, mesh.coordinates(mesh.rank_at(stage, 0, 0, 0, 0)), stage);
    for (const PlannedUnit& unit : planned.units) {
      const bool replicated = unit.plan.replicated();
      UnitRow row;
      row.name = unit.plan.name;
      row.family = name_of(unit.plan.family);
      row.stage = stage;
      row.group = name_of(unit.shard_group);
      row.placement = replicated || unit.layout.shards == 1 ? "replicated" : "sharded";
      row.policy = policy_text(unit);
      row.why = unit.policy.reason;
      row.bytes = replicated ? ReplicatedParameters::bytes(unit.plan.parameters)
                             : unit.layout.unsharded_size() * size_of(DType::float32);
      row.parameters = replicated ? row.bytes / size_of(DType::float32) : unit.layout.parameter_size();
      row.padding = replicated ? 0 : unit.layout.padding();
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

void print_json(const std::vector<UnitRow>& rows) {
  Json units = Json::array();
  for (const UnitRow& row : rows) {
    units.push_back({{"name", row.name},
                     {"family", row.family},
                     {"stage", row.stage},
                     {"parameters", row.parameters},
                     {"bytes", row.bytes},
                     {"padding", row.padding},
                     {"group", row.group},
                     {"placement", row.placement},
                     {"policy", row.policy},
                     {"why", row.why}});
  }
  fmt::print("{}\n", Json{{"units", units}}.dump());
}

void print_text(const std::vector<UnitRow>& rows) {
  fmt::print("{:<18} {:<10} {:>5} {:>12} {:>12} {:<10} {:<10}\n", "unit", "family", "stage", "parameters",
             "MiB float32", "group", "placement");
  for (const UnitRow& row : rows) {
    fmt::print("{:<18} {:<10} {:>5} {:>12} {:>12.3f} {:<10} {:<10}\n", row.name, row.family, row.stage, row.parameters,
               static_cast<double>(row.bytes) / (1024.0 * 1024.0), row.group, row.placement);
    fmt::print("    {}: {}\n", row.policy, row.why);
  }
}

}  // namespace

void add_units_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("units", "shard units: what travels together, where, and why");
  const auto file = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  add_config_arguments(*command, *file)->required();
  command->add_flag("--json", *json, "print one JSON document");
  command->callback([command, file, json] {
    const auto rows = unit_rows(read_config_given_to(*command, *file).config);
    *json ? print_json(rows) : print_text(rows);
  });
}

}  // namespace weft
