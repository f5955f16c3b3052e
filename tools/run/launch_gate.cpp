#include "tools/run/launch_gate.h"

#include "parallel/runtime/refusal.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_reports.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/explain.h"
#include "trainer/rank/backend.h"
#include "trainer/resolve/rank_classes.h"

namespace weft {
namespace {

Hardware hardware_at_hand(const Config& config) {
  Hardware hardware = hardware_of(config);
  if (config.run.device == DeviceKind::cpu || config.hardware.memory || !config.hardware.name.empty()) return hardware;
  hardware.memory.reset();
  if (const auto bytes = cuda_memory()) {
    hardware.memory = Figure{static_cast<double>(*bytes / config.run.ranks_per_device), "the GPU of this machine"};
  }
  return hardware;
}

}  // namespace

void require_fit(const CLI::App& command, const std::string& file, const Config& config) {
  if (config.run.ignore_plan) return;
  const Hardware hardware = hardware_at_hand(config);
  if (!hardware.memory) return;
  const Verdict verdict = judge(hardware, fullest_peak(ResolvedRun(config)));
  if (verdict.fits()) return;
  const ReadWith read = [&](const Overrides& words) {
    return read_config(file, merged_words(overrides_given_to(command), words)).config;
  };
  std::string moves;  // empty if the ranks cannot be dealt to the hardware's nodes
  refusal_of([&] { moves = plan_remedies_text(explain_run(read, hardware)); });
  fail_request(
      "{}: the plan says that this run {}\n{}No rank was started; run.ignore_plan = true starts them all the same.",
      file, verdict.text(), moves);
}

}  // namespace weft
