#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/reader.h"

namespace weft {

CLI::Option* add_checkpoint_argument(CLI::App& command, const std::string& name, std::string& path) {
  return command
      .add_option(name, path, "a checkpoint; of a folder of checkpoints or the directory of a run, its newest")
      ->required();
}

std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path) {
  const CheckpointFolder found = resolve_checkpoint(path);
  try {
    return std::make_unique<CheckpointReader>(found.path);
  } catch (const Error& error) {
    fail("{}", error.what());
  }
}

void add_checkpoint_command(CLI::App& program) {
  CLI::App* checkpoint = program.add_subcommand("checkpoint", "contents, integrity and differences of checkpoints");
  checkpoint->require_subcommand(1);
  add_checkpoint_inspect_command(*checkpoint);
  add_checkpoint_verify_command(*checkpoint);
  add_checkpoint_diff_command(*checkpoint);
}

}  // namespace weft
