#include <fmt/format.h>

#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "tools/report/report_parts.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/reader.h"

namespace weft {
namespace {

struct VerifyRequest {
  std::string path;
  bool json = false;
};

void verify_checkpoint(const VerifyRequest& request) {
  const std::string path = resolve_checkpoint(request.path).path.string();
  std::vector<std::string> faults;
  {
    ProgressLine progress;
    faults = find_checkpoint_faults(path,
                                    [&](std::int64_t done, std::int64_t all) { progress.bytes(done, all, "checked"); });
  }
  if (request.json) {
    fmt::print("{}", line_of({{"path", path}, {"sound", faults.empty()}, {"faults", faults}}));
  } else if (faults.empty()) {
    fmt::print("{}: every byte is as it was written\n", path);
  } else {
    for (const std::string& fault : faults) fmt::print("{}\n", fault);
  }
  if (!faults.empty()) throw CLI::RuntimeError(failed_run);
}

}  // namespace

void add_checkpoint_verify_command(CLI::App& checkpoint) {
  const auto [command, request] = add_command<VerifyRequest>(
      checkpoint, "verify", "hold every byte against its checksum: everything that is missing or damaged",
      verify_checkpoint);
  add_checkpoint_argument(command, "PATH", request.path);
  command.add_flag("--json", request.json, "print one JSON document");
  command.footer("Exit code: 0 sound, 3 damaged, 2 PATH is no checkpoint.");
}

}  // namespace weft
