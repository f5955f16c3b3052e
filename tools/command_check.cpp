#include <fmt/format.h>

#include <memory>

#include "tools/commands.h"
#include "trainer/resolved_run.h"
#include "trainer/text_file.h"

namespace weft {

void add_check_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("check", "validate CONFIG and print it with the origin of each value");
  const auto file = std::make_shared<std::string>();
  add_config_arguments(*command, *file)->required();
  command->callback([command, file] {
    const ResolvedConfig resolved = read_config_given_to(*command, *file);
    const ResolvedRun run(resolved.config);
    step_program(run, run.mesh().coordinates(0));
    // Without data the configuration is one to plan with.
    if (!resolved.config.data.train.empty()) require_byte_vocabulary(resolved.config);
    fmt::print("{}", resolved.annotated);
  });
}

}  // namespace weft
