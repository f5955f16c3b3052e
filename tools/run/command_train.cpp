// `weft train`, and `weft check`, which says what would keep a run from it. Both ask whether the run fits its card.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/standard_error.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_reports.h"
#include "trainer/config/config.h"
#include "trainer/costs/hardware.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/explain.h"
#include "trainer/rank/backend.h"
#include "trainer/resolve/step_programs.h"
#include "trainer/run/console.h"
#include "trainer/run/run_signals.h"
#include "trainer/run/start_check.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

// The hardware of the configuration. It has no memory where a run on a GPU has neither hardware.name nor
// hardware.memory, because the default row is not its card.
Hardware said_hardware(const Config& config) {
  Hardware hardware = hardware_of(config);
  const HardwareConfig& said = config.hardware;
  if (config.run.device == DeviceKind::cuda && !said.memory && said.name.empty()) hardware.memory.reset();
  return hardware;
}

// Throws Error (request) if the plan of the run exceeds the memory of `card`, unless run.ignore_plan is set. It names
// the bucket that decides and the best remedies. Warns of a plan that leaves little room. A card without memory is not
// checked. `config`: the configuration from `file` and the command line.
void require_room(const CLI::App& command, const std::string& file, const Config& config, const Hardware& card) {
  if (config.run.ignore_plan || (!card.memory && !card.host_memory)) return;
  const ResolvedRun run(config);
  StepPrograms programs(run);
  const Verdict verdict = judge(card, fullest_peak(programs), host_need(programs));
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
    return read_typed_config(file, merged_words(overrides_given_to(command), words)).config;
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

// If the configuration names no card and no memory, those of the GPU at hand count.
Hardware hardware_at_hand(const Config& config) {
  Hardware hardware = said_hardware(config);
  if (config.run.device == DeviceKind::cpu || hardware.memory) return hardware;
  if (const auto bytes = cuda_memory()) {
    hardware.memory = Figure{static_cast<double>(*bytes / config.run.ranks_per_device), "the GPU of this machine"};
  }
  return hardware;
}

// Calls `action` of a command that trains `file` or says what would keep it from that. A refusal also lists the faults
// of the files and folders that `file` names.
void list_named_faults(const CLI::App& command, const std::string& file, const std::function<void()>& action) {
  auto refused = refusal_of(action);
  if (!refused) return;
  std::vector<std::string> faults;
  refusal_of([&] { faults = named_faults(read_values(file, words_given_to(command).overrides)); });
  for (const std::string& fault : faults) {
    if (refused->find(fault) == std::string::npos) *refused += "\n" + fault;
  }
  throw Error(ErrorKind::request, *refused);
}

constexpr const char* signals_help = R"(
Checkpoints and signals:
  The last step is saved below run.directory/checkpoints, with --checkpoint.interval=100 also every 100 steps; the same
  command goes on from the newest, also with other degrees, schedule or precision. SIGTERM, SIGINT, SIGHUP and SIGUSR1
  save and leave with exit code 75, a second one ends at once, as the first does before the first step; SIGUSR2 saves
  and goes on.)";

// Domain and range names are those of nvtx.h and execute.h.
constexpr const char* profiling_help = R"(
Profiling:
  --profiling.first_step=10 --profiling.last_step=12 records these steps. Every rank leaves trace_rank<R>.json in
  run.directory, for ui.perfetto.dev; on a GPU cudaProfilerStart and cudaProfilerStop stand around the steps.

  Their timeline, with every action as an NVTX range:
    nsys profile --trace=cuda,nvtx,cublas,cudnn --capture-range=cudaProfilerApi --capture-range-end=stop \
        --nvtx-domain-include=weft --output=weft \
        weft train CONFIG --profiling.first_step=10 --profiling.last_step=12

  The kernels of one action of a step, here the forward of a segment:
    ncu --profile-from-start off --nvtx --nvtx-include "weft@PP:0F blocks.1.experts]" --set full --export weft \
        weft train CONFIG --profiling.first_step=10

  Ranges are called PP:<stage><F|B|I|W> <segment>, PP:<stage>ROWS_<F|R|B> <segment>, PP:<stage><SEND|RECV>_<F|B>, unshard,
  reshard, reduce_grad and tie_grad <unit>, grad_norm and optimizer, inside step; the trace shows them all. Microbatch,
  bytes and step are their payload.)";

void check_file(const CLI::App& command, const std::string& file) {
  ResolvedConfig resolved;
  list_named_faults(command, file, [&] {
    resolved = read_config_given_to(command, file);
    warn_of_training(resolved.config);
  });
  fmt::print("{}", resolved.annotated);
  std::string verdict = "can be planned";
  if (resolved.config.data.train.empty()) {
    // A configuration for planning: every command that reads no text accepts it.
    check_step(resolved.config);
    say("weft: warning: data.train names no file: the configuration can be planned, not trained\n");
  } else {
    list_named_faults(command, file,
                      [&] { require_room(command, file, resolved.config, said_hardware(resolved.config)); });
    verdict = "can be trained: " + check_start(resolved).reading;
  }
  // A comment, so that the whole output is a run file.
  fmt::print("\n# {}; {} ranks, {} parameters, {} keys said\n", verdict, resolved.config.parallelism.world(),
             count_parameters(resolved.config.model).total, resolved.said.size());
  // A missing GPU is only a warning, because a configuration may be checked on another machine than it runs on.
  const auto reason = resolved.config.run.device == DeviceKind::cuda ? why_no_cuda() : std::nullopt;
  if (reason) say("weft: warning: run.device is \"cuda\", which cannot be used here: {}\n", *reason);
}

void train_file(const CLI::App& command, const std::string& file, const std::string& command_line) {
  // The set-up may last, and a GPU starts threads in it: none of them may take a signal.
  RunSignals signals;
  ResolvedConfig resolved;
  list_named_faults(command, file, [&] {
    resolved = read_config_given_to(command, file);
    warn_of_training(resolved.config);
    require_room(command, file, resolved.config, hardware_at_hand(resolved.config));
  });
  PatientOutput output(STDOUT_FILENO);
  std::ostream out(&output);
  Console console(out, isatty(STDOUT_FILENO) != 0);
  const RunRequests requests{[&] { return signals.asked_to_stop(); }, [&] { return signals.take_save_request(); },
                             [&] { signals.begin(); }, [&] { return signals.stopped_by(); }};
  const TrainResult result =
      train(resolved, {command_line, version_text(resolved.config.run.device)}, console, requests);
  // Told by the console, if its reader has not gone.
  if (!output.finish(requests.stop)) throw CLI::RuntimeError(failed_run);
  // Not the exit code of a signal, after which schedulers give the same command again: it would stop there again.
  if (!result.stopping_spike.empty()) fail("{}", result.stopping_spike);
  if (result.stopped) throw CLI::RuntimeError(stopped_by_signal);
}

}  // namespace

void add_check_command(CLI::App& program) {
  const auto [command, file] = add_command<std::string>(
      program, "check", "print CONFIG with the origin of each value, and say all that would keep it from being trained",
      check_file);
  add_config_arguments(command, file)->required();
}

void add_train_command(CLI::App& program, const std::string& command_line) {
  const auto [command, file] = add_command<std::string>(
      program, "train", "run CONFIG; leaves metrics and a summary in run.directory",
      [command_line](const CLI::App& given, const std::string& config) { train_file(given, config, command_line); });
  add_config_arguments(command, file)->required();
  command.footer(command.get_footer() + "\n" + signals_help + "\n" + profiling_help);
}

}  // namespace weft
