// The weights of a dense model as the beginning of one with experts (Komatsuzaki et al. 2022, arXiv:2212.05055). Every
// expert of a block is a copy of its MLP, and the router is new. As long as the experts are equal, so are the outputs
// of both models, whatever the router chooses. The weights of the chosen experts sum to one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layers/model_config.h"
#include "trainer/checkpoint/reader.h"

namespace weft {

struct UpcycleOptions {
  std::int64_t experts = 0, experts_per_token = 2;
  std::optional<ModelLayers> layers = {};  // of the new model; absent: experts in every block
};
// Keys of [model.moe] that no option gives have their defaults, whatever the dense model says, and
// router_aux_loss_coef is 0.01. Throws Error (request) for a model that has experts already, another number of blocks,
// no block with experts, or blocks with widths of their own. So it does for fewer experts than a token goes to.
ModelConfig upcycled_model(const ModelConfig& dense, const UpcycleOptions& options);

// Writes a checkpoint of weights of `model` to the new folder `to`, from those of `dense`. Copies the files beside the
// weights, with `config` in place of the configuration. `model_keys` are the manifest's entries for the model. Routers
// are drawn as those of a new run of this seed.
void upcycle(const CheckpointReader& dense, const ModelConfig& model, const std::string& config,
             const std::map<std::string, std::string>& model_keys, std::uint64_t seed, const std::filesystem::path& to);

}  // namespace weft
