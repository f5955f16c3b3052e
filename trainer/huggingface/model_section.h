// The [model] section of a configuration by itself: of a checkpoint, whose other sections may speak of files that are
// not here, and of an imported one, which has no other.
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
  std::optional<std::int64_t> sequence_length;  // of [training], where that says so
};

// Throws Error (request) with what is wrong in [model], as reading a configuration does.
ModelSection read_model_section(const std::filesystem::path& file);
// As TOML, [model.moe] included.
std::string model_section_toml(const ModelConfig& model);
// As model.layers would be written: "d e*3".
std::string layers_text(const std::vector<BlockKind>& blocks);

}  // namespace weft
