// The last step of a save: joins the parts of all ranks into a checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/output_file.h"

namespace weft {

struct PublishRequest {
  std::filesystem::path directory;
  std::int64_t step = 0;
  int ranks = 1;
  std::string config_text;
  std::int64_t keep_latest = 0, keep_every = 0;
};

// Joins the parts in the folder of the save, writes the manifest, renames the folder and removes superseded
// checkpoints. Throws Error (failure); if the new checkpoint is not published, all earlier ones stay.
CheckpointFolder publish(const PublishRequest& request, const FileCalls& calls);

}  // namespace weft
