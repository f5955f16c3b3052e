// The weights of a checkpoint, for a model that is used and not trained.
#pragma once

#include <filesystem>

#include "trainer/config/config.h"
#include "trainer/inference/forward_run.h"

namespace weft {

// What fills a rank's stages with the weights of the checkpoint in `folder`, whatever layout wrote it; ranks of this
// process share its files. Throws Error (request) where it cannot be read, or holds another model than `config`.
FillWeights weights_of_checkpoint(const std::filesystem::path& folder, const Config& config);

}  // namespace weft
