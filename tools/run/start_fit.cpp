#include "tools/run/start_fit.h"

#include <fmt/format.h>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_reports.h"
#include "trainer/planning/explain.h"
#include "trainer/resolve/step_programs.h"
#include "trainer/run/start_check.h"

namespace weft {

Hardware said_hardware(const Config& config) {
  Hardware hardware = hardware_of(config);
  const HardwareConfig& said = config.hardware;
  if (config.run.device == DeviceKind::cuda && !said.memory && said.name.empty()) hardware.memory.reset();
  return hardware;
}

void require_room(const CLI::App& command, const std::string& file, const Config& config, const Hardware& card) {
  if (config.run.ignore_plan || (!card.memory && !card.host_memory)) return;
  const ResolvedRun run(config);
  const Verdict verdict = judge(card, fullest_peak(run), host_need(run));
  if (verdict.leaves_little_room()) print_warnings(config, {"the plan says that this run " + verdict.text()});
  if (verdict.fits()) {
    const std::int64_t worst = routing_decides(config) ? check_step(config).predicted.worst.value_or(0) : 0;
    if (verdict.fit_of(worst + verdict.reserved) == verdict.fit) return;
    return print_warnings(config, {fmt::format("the plan says that this run {} with worst routing: at most {} of {}; "
                                               "weft plan --explain tells what changes that",
                                               words_of(verdict.fit_of(worst + verdict.reserved)),
                                               format_bytes(worst + verdict.reserved), format_bytes(verdict.memory))});
  }
  const ReadWith read = [&](const Overrides& words) {
    return read_config(file, merged_words(overrides_given_to(command), words)).config;
  };
  std::string remedies;  // empty if the ranks cannot be dealt to the hardware's nodes
  refusal_of([&] { remedies = plan_remedies_text(explain_run(read, card)); });
  Overrides words = {file};
  for (const std::string& given : overrides_given_to(command)) words.push_back(given);
  // weft plan does not ask a GPU for its memory.
  if (!said_hardware(config).memory)
    words.push_back(word("hardware.memory", verdict.memory * config.run.ranks_per_device));
  fail_request(
      "{}: the plan says that this run {}\n{}weft plan {} --explain says more.\nNo rank was started; run.ignore_plan = "
      "true starts them all the same.",
      file, verdict.text(), remedies, shell_text(words));
}

}  // namespace weft
