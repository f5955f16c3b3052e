#include "tools/command/commands.h"

namespace weft {

void add_layout_command(CLI::App& program) {
  CLI::App* layout = program.add_subcommand("layout", "blocks of the stages: memory, time and bubble");
  layout->require_subcommand(1);
  add_layout_show_command(*layout);
  add_layout_simulate_command(*layout);
  add_layout_sweep_command(*layout);
}

}  // namespace weft
