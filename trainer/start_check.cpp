#include "trainer/start_check.h"

#include <algorithm>
#include <initializer_list>

#include "parallel/mesh/mesh.h"
#include "parallel/runtime/error.h"
#include "trainer/checkpoint/start.h"
#include "trainer/config/config_messages.h"
#include "trainer/data.h"
#include "trainer/dry_run.h"
#include "trainer/run_directory.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

// Shown where the first of the keys that was written stands.
std::string placed(const ResolvedConfig& resolved, std::initializer_list<const char*> keys, const std::string& text) {
  for (const char* key : keys) {
    if (const auto found = resolved.said.find(key); found != resolved.said.end()) {
      return format_fault({found->second.place, text});
    }
  }
  return text;
}

std::vector<std::string> data_faults(const ResolvedConfig& resolved) {
  std::vector<std::string> faults;
  const auto& names = std::get<std::vector<ConfigValue>>(resolved.said.at("data.train").data);
  for (const ConfigValue& name : names) {
    const std::string fault =
        text_file_fault(std::get<std::string>(name.data), resolved.config.training.sequence_length);
    if (!fault.empty()) faults.push_back(format_fault({name.place, "data.train: " + fault}));
  }
  return faults;
}

}  // namespace

CheckedStart check_start(const ResolvedConfig& resolved) {
  const Config& config = resolved.config;
  std::vector<std::string> faults = data_faults(resolved);
  if (const std::string fault = run_directory_fault(config.run.directory); !fault.empty()) {
    faults.push_back(placed(resolved, {"run.directory"}, fault));
  }
  try {
    require_usable_start(config);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request) throw;
    faults.push_back(placed(resolved,
                            {"checkpoint.start_from", "checkpoint.resume", "checkpoint.directory", "run.directory"},
                            error.what()));
  }
  if (!faults.empty()) throw Error(ErrorKind::request, fmt::format("{}", fmt::join(faults, "\n")));

  const Mesh mesh(config.parallelism);
  CheckedStart start{.program = step_program(config, mesh, mesh.coordinates(0))};
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    const DryRun dry = dry_run(config, mesh, start.program, mesh.rank_at(rank, 0, 0, 0, 0));
    start.predicted_peak = std::max(start.predicted_peak, dry.peak.total());
  }
  return start;
}

}  // namespace weft
