#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/run/start_fit.h"
#include "trainer/config/config.h"
#include "trainer/rank/backend.h"
#include "trainer/run/console.h"
#include "trainer/run/run_signals.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

// If the configuration names no card and no memory, those of the GPU at hand count.
Hardware hardware_at_hand(const Config& config) {
  Hardware hardware = said_hardware(config);
  if (config.run.device == DeviceKind::cpu || hardware.memory) return hardware;
  if (const auto bytes = cuda_memory()) {
    hardware.memory = Figure{static_cast<double>(*bytes / config.run.ranks_per_device), "the GPU of this machine"};
  }
  return hardware;
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

}  // namespace

void add_train_command(CLI::App& program, const std::string& command_line) {
  CLI::App* command = program.add_subcommand("train", "run CONFIG; leaves metrics and a summary in run.directory");
  const auto file = std::make_shared<std::string>();
  add_config_arguments(*command, *file)->required();
  command->footer(command->get_footer() + "\n" + signals_help + "\n" + profiling_help);
  command->callback([command, file, command_line] {
    const ResolvedConfig resolved = read_config_given_to(*command, *file);
    warn_of_training(resolved.config);
    require_room(*command, *file, resolved.config, hardware_at_hand(resolved.config));
    Console console(std::cout, isatty(STDOUT_FILENO) != 0);
    RunSignals signals;
    const RunRequests requests{[&] { return signals.asked_to_stop(); }, [&] { return signals.take_save_request(); },
                               [&] { signals.begin(); }, [&] { return signals.stopped_by(); }};
    const TrainResult result = train(resolved, {command_line, version_text()}, console, requests);
    // Not the exit code of a signal, after which schedulers give the same command again: it would stop there again.
    if (!result.stopping_spike.empty()) fail("{}", result.stopping_spike);
    if (result.stopped) throw CLI::RuntimeError(stopped_by_signal);
  });
}

}  // namespace weft
