#include "trainer/run/start_check.h"

#include <fmt/ranges.h>

#include <initializer_list>

#include "parallel/runtime/refusal.h"
#include "trainer/checkpoint/start.h"
#include "trainer/config/config_messages.h"
#include "trainer/data/data.h"
#include "trainer/data/text_file.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/run_directory.h"

namespace weft {
namespace {

// The text with the place of the first of `keys` that the configuration sets.
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
  for (const ConfigValue& name : elements_of(resolved.said.at("data.train"))) {
    const std::string fault =
        text_file_fault(std::get<std::string>(name.data), resolved.config.training.sequence_length);
    if (!fault.empty()) faults.push_back(format_fault({name.place, "data.train: " + fault}));
  }
  return faults;
}

}  // namespace

CheckedStart check_step(const Config& config) {
  const ResolvedRun run(config);
  const Mesh& mesh = run.mesh();
  CheckedStart start{.program = step_program(run, mesh.coordinates(0)), .predicted = {}};
  const auto peak = [&](Routing routing) { return largest_dry_peak(run.config(), mesh, start.program, routing); };
  start.predicted.even = peak(Routing::even);
  if (routing_decides(config)) start.predicted.worst = peak(Routing::worst);
  return start;
}

CheckedStart check_start(const ResolvedConfig& resolved) {
  const Config& config = resolved.config;
  if (config.data.train.empty()) fail_request("data.train names no file; give at least one text file");
  require_byte_vocabulary(config);
  std::vector<std::string> faults = data_faults(resolved);
  const bool readable = faults.empty();  // the start reads the text too, and would tell the same faults
  if (const std::string fault = run_directory_fault(config.run.directory); !fault.empty()) {
    faults.push_back(placed(resolved, {"run.directory"}, fault));
  }
  if (const auto refused = readable ? refusal_of([&] { require_usable_start(config); }) : std::nullopt) {
    faults.push_back(placed(
        resolved, {"checkpoint.start_from", "checkpoint.resume", "checkpoint.directory", "run.directory"}, *refused));
  }
  if (!faults.empty()) throw Error(ErrorKind::request, fmt::format("{}", fmt::join(faults, "\n")));

  return check_step(config);
}

}  // namespace weft
