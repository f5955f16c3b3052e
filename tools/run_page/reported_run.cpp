#include "tools/run_page/reported_run.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "parallel/runtime/error.h"
#include "trainer/config/config_sources.h"
#include "trainer/rank/metrics.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

constexpr const char* config_file = "config.toml";

ReportedRun read_reported_run(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    fail_request("weft report: error: {} is no directory; name the run.directory of a run", directory.string());
  }
  for (const char* needed : {config_file, metrics_file}) {
    if (std::filesystem::exists(directory / needed)) continue;
    fail_request("weft report: error: {} is not the directory of a run: it has no {}", directory.string(), needed);
  }
  ReportedRun run;
  run.directory = directory;
  run.config_text = read_text(directory / config_file);
  run.config = read_config_text(run.config_text, (directory / config_file).string()).config;
  run.name = run.config.run.name;
  run.table = read_step_table(directory / metrics_file);
  try {
    run.lanes = step_lanes(run.config, directory);
  } catch (const Error& error) {
    run.unplanned = error.what();
  }
  return run;
}

}  // namespace

std::vector<ReportedRun> read_reported_runs(std::span<const std::string> directories) {
  std::set<std::filesystem::path> seen;
  for (const std::string& directory : directories) {
    std::error_code error;
    if (seen.insert(std::filesystem::weakly_canonical(directory, error)).second) continue;
    fail_request("weft report: error: {} is given twice", directory);
  }
  std::vector<ReportedRun> runs;
  for (const std::string& directory : directories) runs.push_back(read_reported_run(directory));
  for (ReportedRun& run : runs) {
    const auto same =
        std::ranges::count(runs, run.config.run.name, [](const ReportedRun& other) { return other.config.run.name; });
    if (same > 1) run.name = fmt::format("{} ({})", run.config.run.name, run.directory.string());
  }
  return runs;
}

}  // namespace weft
