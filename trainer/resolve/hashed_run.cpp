#include "trainer/resolve/hashed_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/checksum.h"
#include "trainer/config/config_schema.h"
#include "trainer/plan/stage_plan.h"

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

}  // namespace

std::string hashed_configuration(const Config& config) {
  constexpr std::array<std::string_view, 4> places = {"run.name", "run.directory", "checkpoint.directory",
                                                      "data.index_cache"};
  std::vector<ConfigKey> schema = config_schema();
  std::erase_if(schema, [&](const ConfigKey& key) { return std::ranges::find(places, key.path()) != places.end(); });
  Config whole = config;
  for (const Family family : shard_families) {
    whole.precision_by_family.try_emplace(family, config.inherited_precision(family));
  }
  return write_config(whole, schema, [](const ConfigKey&) { return std::string(); });
}

std::string hashed_program(const Program& program) {
  std::string text;
  for (const std::vector<Action>& actions : program.ranks) text += format_actions(program, actions, ",") + "\n";
  return text;
}

std::string hashed_layout(const ResolvedRun& run) {
  const Mesh& mesh = run.mesh();
  std::string text;
  for (const Group group : all_groups) {
    const RankSteps steps = mesh.steps(group);
    text += fmt::format("{} {} ranks, {} apart\n", name_of(group), steps.count, steps.stride);
  }
  std::map<int, std::string> stages;
  for (int pp = 0; pp < mesh.degrees().pipeline; ++pp) {
    const Coordinates first = mesh.coordinates(mesh.rank_at(pp, 0, 0, 0, 0));
    for (const PlannedStage& stage : plan_stages(run.config(), mesh, first, run.layout())) {
      std::string& units = stages[stage.stage];
      units = fmt::format("stage {} on pipeline rank {}\n", stage.stage, pp);
      for (const PlannedUnit& unit : stage.units) units += unit_line(unit);
    }
  }
  for (const auto& [stage, units] : stages) text += units;
  return text;
}

RunHashes hashes_of(const Config& config, const ResolvedRun& run, const Program& program) {
  const auto hash = [](const std::string& text) { return checksum_text(checksum(text)); };
  return {hash(hashed_configuration(config)), hash(hashed_program(program)), hash(hashed_layout(run))};
}

}  // namespace weft
