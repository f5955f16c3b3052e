// The starting point of a run: the newest of its own checkpoints, the checkpoint of checkpoint.start_from, or none.
#pragma once

#include <vector>

#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/config/config.h"

namespace weft {

struct StartingPoint {
  std::vector<CheckpointFolder> candidates;  // the first readable one is used; empty: the run begins anew
  bool own = false;                          // the candidates are the run's own checkpoints
  bool weights_only = false;
};
// Throws Error (request) if the run may not resume from the existing checkpoints, or if start_from names no checkpoint.
StartingPoint starting_point(const Config& config);
// The data that a run takes from a readable checkpoint.
struct PlannedStart {
  LoadPlan load;
  Progress progress;     // the run continues from here
  std::string new_data;  // a line for each data key that differs; not empty: the data begins with sample 0
};
// `reader` reads a candidate of `from`; `data` are data_keys() of the run. Throws Error (request) naming the checkpoint
// if it is of another model, or of other data and checkpoint.allow_new_data is not set. A checkpoint of the run that
// has the name of another step is refused. It also throws if Megatron's order has too few samples for the rest of the
// run. A run that begins with weights alone may add selection biases and shared experts that checkpoint.allow_missing
// names. It may score in another way if the routers' weights are named there.
PlannedStart plan_start(const Config& config, const KeyValues& data, const CheckpointReader& reader,
                        const StartingPoint& from);
// Throws Error (request) naming the candidates, none of which can be read.
[[noreturn]] void fail_unreadable(const StartingPoint& from);

// Checks the starting point of a run that reads `data`, except the bytes of tensors. Throws as the three functions
// above.
void require_usable_start(const Config& config, const TokenDataset& data);

}  // namespace weft
