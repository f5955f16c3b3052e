// What a run begins with: the newest of its own checkpoints, the one of checkpoint.start_from, or nothing.
#pragma once

#include <vector>

#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/config/config.h"

namespace weft {

struct StartingPoint {
  std::vector<CheckpointFolder> candidates;  // the first that can be read is taken; none: the run begins anew
  bool own = false;                          // they are those of the run itself
  bool weights_only = false;
};
// Throws Error (request) where the run may not go on with what is there, and where start_from names no checkpoint.
StartingPoint starting_point(const Config& config);
// What a run takes of a checkpoint that can be read.
struct PlannedStart {
  LoadPlan load;
  Progress progress;     // goes on from here
  std::string new_data;  // a line for each key of the data that is not the checkpoint's; they begin with sample 0
};
// `data` are the run's own (data_keys). Throws Error (request) naming the checkpoint where it is of another model, or
// of other data and checkpoint.allow_new_data is not set.
PlannedStart plan_start(const Config& config, const KeyValues& data, const CheckpointReader& reader, bool weights_only);
// Throws Error (request) naming the candidates, none of which can be read.
[[noreturn]] void fail_unreadable(const std::vector<CheckpointFolder>& candidates);

// Looks over what the run begins with, except the bytes of tensors. Throws as the three above.
void require_usable_start(const Config& config);

}  // namespace weft
