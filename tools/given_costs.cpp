#include "tools/given_costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "parallel/runtime/error.h"
#include "tools/program_pictures.h"
#include "trainer/config_reader.h"
#include "trainer/config_sources.h"
#include "trainer/hardware.h"
#include "trainer/measured_costs.h"
#include "trainer/step_costs.h"

namespace weft {
namespace {

LaneChannels channels_of(DeviceKind device) {
  return device == DeviceKind::cpu ? LaneChannels::serial() : LaneChannels::own();
}

// By name, so that other layouts of the same model find their pieces. A layout with more stages has more messages; all
// are of one size, so the median of those measured stands for them. What stages without blocks do takes no time.
CostTable table_of_run(const std::filesystem::path& directory, const Config& config) {
  const Mesh mesh(config.parallelism);
  CostTable table = measured_costs(config, mesh, read_traces(directory, mesh.world()));
  std::vector<double> messages;
  for (const auto& [stage, seconds] : table.messages) messages.push_back(seconds);
  std::sort(messages.begin(), messages.end());
  if (!messages.empty()) table.messages["*"] = messages[messages.size() / 2];
  table.segments["*.passage"] = {};
  return table;
}

// What of a measured run must be as it was for its times to hold.
void require_same_work(const std::string& command, const std::string& run, const Config& was, const Config& config) {
  std::vector<std::string> differing;
  const auto compare = [&](const char* what, const auto& one, const auto& other) {
    if (!(one == other)) differing.emplace_back(what);
  };
  Degrees degrees = was.parallelism;
  degrees.pipeline = config.parallelism.pipeline;
  compare("[model]", was.model, config.model);
  compare("[parallelism] besides pipeline", degrees, config.parallelism);
  compare("training.microbatch_size", was.training.microbatch_size, config.training.microbatch_size);
  compare("training.sequence_length", was.training.sequence_length, config.training.sequence_length);
  compare("training.frozen", was.training.frozen, config.training.frozen);
  compare("[precision]", was.precision, config.precision);
  compare("[precision] of a family", was.precision_by_family, config.precision_by_family);
  compare("run.device", was.run.device, config.run.device);
  if (differing.empty()) return;
  fail_request("{}: error: the costs measured in {} hold for the same work only; it had another {}", command, run,
               fmt::join(differing, ", "));
}

// A kind of action that the run never did has no time, which is not the same as taking none.
void require_measured(const std::string& command, const std::string& run, const Program& program,
                      const ProgramCosts& costs) {
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      if (!action.unit || action.bytes == 0 || is_reshard(action.op)) continue;
      if (action.op != Op::unshard && action.op != Op::unshard_island && !is_reduction(action.op)) continue;
      if (cost_of(program, costs, action) > 0.0) continue;
      fail_request("{}: error: no {} of {} was measured in {}; trace a run that does it", command, name_of(action.op),
                   program.units[static_cast<std::size_t>(*action.unit)].name, run);
    }
  }
}

}  // namespace

CostSource::CostSource(const std::string& command, const std::string& costs, const std::string& hardware)
    : command_(command), hardware_(hardware) {
  if (!costs.empty() && !hardware.empty()) {
    fail_request("{}: error: --costs and --hardware both say what actions cost; leave one of them out", command);
  }
  if (!hardware.empty()) find_hardware(hardware);
  if (costs.empty()) return;
  const bool words = costs.find('=') != std::string::npos;
  if (words) {
    words_ = costs;
    return;
  }
  file_ = costs;
  if (std::filesystem::is_directory(file_)) {
    measured_ = read_config(std::filesystem::path(file_) / "config.toml").config;
    table_ = table_of_run(file_, *measured_);
  } else if (file_.ends_with(".toml")) {
    table_ = parse_cost_table(read_text(file_), file_);
  } else {
    fail_request(
        "{}: error: --costs {} is neither words such as forward=1, nor a table FILE.toml, nor the directory of a run",
        command, costs);
  }
}

StepCosts CostSource::costs_of(const Config& config, const Mesh& mesh, const Program& program) const {
  if (!words_.empty()) return {costs_from_words(command_, program, words_), LaneChannels::own(), true};
  const LaneChannels channels = channels_of(config.run.device);
  if (table_) {
    if (measured_) require_same_work(command_, file_, *measured_, config);
    StepCosts costs{table_costs(*table_, program, group_sizes(mesh)), channels};
    if (measured_) require_measured(command_, file_, program, costs.costs);
    return costs;
  }
  const Hardware& hardware = hardware_.empty() ? hardware_of(config.run.device) : find_hardware(hardware_);
  return {modelled_costs(program, segment_flops(config, program), hardware_costs(hardware, config, mesh),
                         group_sizes(mesh)),
          hardware.name == "cpu" ? LaneChannels::serial() : LaneChannels::own()};
}

std::string CostSource::text(const Config& config) const {
  if (!words_.empty()) return fmt::format("given as {}, in units of time", words_);
  if (measured_) return fmt::format("measured in {}", file_);
  if (table_) return fmt::format("of {}", file_);
  return fmt::format("modelled for {}", hardware_.empty() ? hardware_of(config.run.device).name : hardware_);
}

}  // namespace weft
