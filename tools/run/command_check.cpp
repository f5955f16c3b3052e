#include <fmt/format.h>

#include <memory>

#include "tools/command/commands.h"
#include "tools/run/start_fit.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/backend.h"
#include "trainer/run/start_check.h"

namespace weft {

void add_check_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "check", "print CONFIG with the origin of each value, and say all that would keep it from being trained");
  const auto file = std::make_shared<std::string>();
  add_config_arguments(*command, *file)->required();
  command->callback([command, file] {
    const ResolvedConfig resolved = read_config_given_to(*command, *file);
    warn_of_training(resolved.config);
    fmt::print("{}", resolved.annotated);
    std::string verdict = "can be planned";
    if (resolved.config.data.train.empty()) {
      // A configuration for planning: every command that reads no text accepts it.
      check_step(resolved.config);
      fmt::print(stderr, "weft: warning: data.train names no file: the configuration can be planned, not trained\n");
    } else {
      require_room(*command, *file, resolved.config, said_hardware(resolved.config));
      verdict = "can be trained: " + check_start(resolved).reading;
    }
    // A comment, so that the whole output is a run file.
    fmt::print("\n# {}; {} ranks, {} parameters, {} keys said\n", verdict, resolved.config.parallelism.world(),
               count_parameters(resolved.config.model).total, resolved.said.size());
    // A missing GPU is only a warning, because a configuration may be checked on another machine than it runs on.
    const auto reason = resolved.config.run.device == DeviceKind::cuda ? why_no_cuda() : std::nullopt;
    if (reason) fmt::print(stderr, "weft: warning: run.device is \"cuda\", which cannot be used here: {}\n", *reason);
  });
}

}  // namespace weft
