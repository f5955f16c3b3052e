// The [model] section of a configuration alone. Used for a checkpoint, whose other sections may name absent files, and
// for an imported checkpoint, which has no other section.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "layers/model_config.h"

namespace weft {

struct ModelSection {
  ModelConfig model;
  std::optional<std::int64_t> sequence_length;  // training.sequence_length, if set
  std::string tokenizer = {};                   // data.tokenizer, if set
  bool padded_vocab = false;                    // data.padded_vocab
  std::string documents = {};                   // data.documents, if set
};

// Throws Error (request) with the faults of [model], as reading a configuration does.
ModelSection read_model_section(const std::filesystem::path& file);
// As TOML, [model.moe] included.
std::string model_section_toml(const ModelConfig& model);
// The text of model.layers: "d e*3".
std::string layers_text(const ModelLayers& layers);

}  // namespace weft
