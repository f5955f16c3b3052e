// The end of a save: the parts that all ranks have written become a checkpoint.
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

// Joins the parts in the folder of the save, writes the manifest, gives the folder its name and removes checkpoints
// that are superseded. Throws Error (failure); what was there before is there still.
CheckpointFolder publish(const PublishRequest& request, const FileCalls& calls);

}  // namespace weft
