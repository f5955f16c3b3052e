// A checkpoint written as a folder that transformers and its kin load: safetensors files with an index, config.json,
// generation_config.json and the files of a tokenizer. Only parameters matter; states of the optimizer stay behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/reader.h"
#include "trainer/huggingface/architecture.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/names.h"
#include "trainer/huggingface/shards.h"

namespace weft {

struct ExportOptions {
  Architecture architecture = Architecture::llama;
  std::optional<DType> dtype;  // float32, bfloat16 or float16; nothing: each tensor as it was saved
  std::int64_t largest_file = 5'000'000'000;
  std::int64_t max_position_embeddings = 0;  // 0: what came with the model
  std::filesystem::path tokenizer;           // a folder with its files, and what else goes with a model; empty: none
  std::filesystem::path checkpoint = {};     // where these are looked for in its place: an import keeps them there
};

struct ExportTensor {
  FolderPart part;
  const SavedTensor* saved = nullptr;  // of the manifest
  DType dtype = DType::float32;        // as written
};

// What an export will write.
struct ExportPlan {
  Architecture architecture = Architecture::llama;
  ModelConfig model;
  std::vector<ExportTensor> tensors;
  std::vector<NamedBytes> sizes;                // of each of them
  std::vector<std::vector<std::size_t>> files;  // positions in `tensors`
  FolderFacts facts;
  std::vector<std::filesystem::path> companions;  // copied
  std::int64_t bytes() const;                     // of all tensors
};

// `manifest` outlives the plan. Throws Error (request) listing every reason against the architecture, and every
// parameter that the checkpoint lacks, has too many, or has in another shape or dtype.
ExportPlan plan_export(const Manifest& manifest, const ModelConfig& model, const ExportOptions& options);

// Writes the folder `to`, which must not exist, and holds no more than one tensor at a time. Throws Error: (request)
// also where the checkpoint is damaged or `to` exists, (failure) where it cannot be written.
void export_checkpoint(const CheckpointReader& reader, const ExportPlan& plan, const std::filesystem::path& to);

}  // namespace weft
