#include <fmt/format.h>

#include <memory>

#include "tools/commands.h"

namespace weft {

void add_check_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("check", "validate CONFIG and print it with the origin of each value");
  const auto file = std::make_shared<std::string>();
  add_config_arguments(*command, *file)->required();
  command->callback([command, file] { fmt::print("{}", read_config_given_to(*command, *file).annotated); });
}

}  // namespace weft
