// Loads the weights of a checkpoint into a model without training.
#pragma once

#include <filesystem>

#include "trainer/config/config.h"
#include "trainer/inference/forward_run.h"

namespace weft {

// Returns a function that fills a rank's stages with the weights of the checkpoint in `folder`, written by any layout.
// The ranks of this process share the open files. Throws Error (request) if the checkpoint cannot be read, or is of
// another model than `config`.
FillWeights weights_of_checkpoint(const std::filesystem::path& folder, const Config& config);

}  // namespace weft
