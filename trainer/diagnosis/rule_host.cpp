// Compares what waits in host memory with the room that the device has.
#include <fmt/format.h>

#include "trainer/diagnosis/alternatives.h"
#include "trainer/diagnosis/diagnose.h"

namespace weft {
namespace {

// Takes something back from host memory; returns the change, absent if nothing of it waits there.
using TakeBack = std::optional<SettingChange> (*)(Config& config);
std::optional<SettingChange> take_back_activations(Config& config) {
  if (config.training.offload == 0.0) return std::nullopt;
  config.training.offload = 0.0;
  return SettingChange{"training.offload", "0.0"};
}
std::optional<SettingChange> take_back_states(Config& config) {
  if (config.state_offload == 0.0) return std::nullopt;
  config.state_offload = 0.0;
  return SettingChange{"optimizer.offload", "0.0"};
}

}  // namespace

// Activations come back first: they travel twice for each microbatch, states twice a step.
RuleVerdict check_host_memory(const RunEvidence& evidence) {
  Config config = evidence.config();
  std::vector<SettingChange> changes;
  std::int64_t taken = 0;  // bytes more than now, with these changes
  std::string refused;
  for (const TakeBack take_back : {take_back_activations, take_back_states}) {
    Config changed = config;
    const auto change = take_back(changed);
    if (!change) continue;
    const auto figures = figures_of(changed);
    if (!figures) continue;
    const std::int64_t more = figures->peak_bytes - evidence.program.peak_bytes;
    if (fits(evidence, more).value_or(false)) {
      config = changed;
      taken = more;
      changes.push_back(*change);
    } else {
      refused = fmt::format("{} = {} takes {}", change->setting, change->value, memory_text(evidence, more));
    }
  }
  if (changes.empty()) return refused.empty() ? RuleVerdict::silent() : RuleVerdict::silent("{}", refused);
  DiagnosedFault finding{.sentence = "the device has room for what waits in host memory and is copied in every step"};
  finding.evidence = {memory_line(evidence, "keeping it on the device", taken)};
  finding.changes = std::move(changes);
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
