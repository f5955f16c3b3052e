#include "tools/command/commands.h"

namespace weft {

void add_bench_command(CLI::App& program) {
  CLI::App* bench = program.add_subcommand("bench", "the numbers in the documentation");
  bench->require_subcommand(1);
  add_bench_step_command(*bench);
  add_bench_products_command(*bench);
  add_bench_memory_command(*bench);
  add_bench_window_command(*bench);
  add_bench_timing_command(*bench);
  add_bench_simulated_command(*bench);
  add_bench_checkpoint_command(*bench);
  add_bench_published_command(*bench);
}

}  // namespace weft
