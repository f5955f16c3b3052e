// Where the commands that use a trained model get its weights from.
#pragma once

#include <functional>
#include <string>

#include "trainer/forward_run.h"

namespace weft {

// What loads the weights of CHECKPOINT, a folder with config.toml, into the stages of every rank.
using WeightsOfCheckpoint = std::function<FillWeights(const std::string& checkpoint)>;

}  // namespace weft
