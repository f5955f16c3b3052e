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

}  // namespace weft
