// `weft trace costs`: the measured times of a run's actions as a table, with which later runs are planned and solved.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "tools/command/commands.h"
#include "tools/report/given_costs.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

struct TraceCostsRequest {
  std::string run, output;
};

// Units that other strategies share among ranks, and this run never gathered. The table cannot tell what that takes.
std::vector<std::string> never_gathered(const Config& config, const CostTable& costs) {
  const Mesh mesh(config.parallelism);
  std::vector<std::string> names;
  for (const ProgramUnit& unit : program_tables(config, mesh, mesh.coordinates(0)).units) {
    const auto found = costs.units.find(unit.name);
    if (unit.replicated || found == costs.units.end() || found->second.gather > 0.0) continue;
    if (shard_ranks(config.parallelism, unit.family) > 1) names.push_back(unit.name);
  }
  return names;
}

void write_costs(const TraceCostsRequest& request) {
  const Config config = read_config(std::filesystem::path(request.run) / "config.toml").config;
  const CostTable costs = table_of_run(request.run, config);
  const Degrees& d = config.parallelism;
  const std::string heading = fmt::format(
      "# Seconds of the actions of {}, by its traces: pipeline.costs = \"FILE\", or --costs FILE.\n"
      "# For the same [model], [precision], microbatch, sequence length and device, with data_shard {}, data_replicate "
      "{}, context {}, tensor {}, expert {}.\n",
      request.run, d.data_shard, d.data_replicate, d.context, d.tensor, d.expert);
  write_result("weft trace costs", heading + to_toml(costs), request.output);
  if (const auto names = never_gathered(config, costs); !names.empty()) {
    print_warnings(config, {fmt::format("the run never gathered {}: in this table a gather of them takes no time",
                                        fmt::join(names, ", "))});
  }
}

}  // namespace

void add_trace_costs_command(CLI::App& trace) {
  CLI::App* command =
      trace.add_subcommand("costs", "measured seconds of each action, as a table for pipeline.costs and --costs");
  const auto request = std::make_shared<TraceCostsRequest>();
  command->add_option("RUN", request->run, "the directory of a run with traces, all of one machine")->required();
  command->add_option("--output", request->output, "write to this file instead of standard output")->check(writable());
  command->callback([request] { write_costs(*request); });
}

}  // namespace weft
