#include <unistd.h>

#include <iostream>
#include <memory>

#include "tools/commands.h"
#include "trainer/console.h"
#include "trainer/train.h"

namespace weft {

void add_train_command(CLI::App& program, const std::string& command_line) {
  CLI::App* command = program.add_subcommand("train", "run CONFIG; leaves metrics and a summary in run.directory");
  const auto file = std::make_shared<std::string>();
  add_config_arguments(*command, *file)->required();
  command->callback([command, file, command_line] {
    const ResolvedConfig resolved = read_config(*file, overrides_given_to(*command));
    Console console(std::cout, isatty(STDOUT_FILENO) != 0);
    train(resolved, {command_line, version_text()}, console);
  });
}

}  // namespace weft
