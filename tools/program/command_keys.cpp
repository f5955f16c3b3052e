#include <fmt/format.h>

#include "tools/command/commands.h"
#include "trainer/config/config_schema.h"

namespace weft {

void add_keys_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("keys", "every key of CONFIG with its default and its meaning");
  command->callback([] {
    const auto meaning = [](const ConfigKey& key) { return (key.required ? "required: " : "") + key.help; };
    const Config defaults;
    fmt::print("{}", write_config(defaults, config_schema(), meaning));
  });
}

}  // namespace weft
