// Reads a Hugging Face folder into a checkpoint of weights at step 0. Dtypes of the folder's files are kept, so an
// export of the checkpoint has the same bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "trainer/huggingface/model_json.h"

namespace weft {

// The model that the folder's config.json describes, without predictors if the weights have none. Throws Error
// (request) as parse_model_json does, and where it describes predictors, as WeightFolder does.
FolderModel read_folder_model(const std::filesystem::path& folder);

struct ImportResult {
  FolderModel folder;
  std::int64_t parameters = 0, bytes = 0;
  std::size_t files = 0;
};

// Writes the checkpoint `to`, which must not exist: safetensors files, manifest.json, config.toml with the folder's
// [model], and the companion files (model_folder.h). `model_keys` are the manifest's entries for the model. Weights
// go from file to file in small strips. Throws Error (request) listing every tensor that is missing, unknown, or of
// another shape or dtype, and Error (failure) if `to` cannot be written.
ImportResult import_folder(const std::filesystem::path& folder, const std::filesystem::path& to,
                           const std::map<std::string, std::string>& model_keys,
                           std::int64_t largest_file = 5'000'000'000);

}  // namespace weft
