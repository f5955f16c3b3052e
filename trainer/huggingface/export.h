// Writes a checkpoint as a folder for transformers and compatible programs: safetensors files with an index,
// config.json, generation_config.json and tokenizer files. Only parameters are exported; optimizer state is not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/checkpoint/reader.h"
#include "trainer/huggingface/architecture.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/names.h"

namespace weft {

struct ExportOptions {
  Architecture architecture = Architecture::llama;
  std::optional<DType> dtype;  // float32, bfloat16 or float16; absent: the saved dtype of each tensor
  std::int64_t largest_file = 5'000'000'000;
  std::int64_t max_position_embeddings = 0;  // 0: the value that came with the model
  std::filesystem::path tokenizer;           // folder of tokenizer and companion files; empty: none
  std::filesystem::path checkpoint = {};     // searched for these if `tokenizer` is empty: an import keeps them there
  std::set<std::string> left_behind = {};    // parameters of the checkpoint that are not of the model
  std::string ranks = {};                    // of tiktoken, as open_tokenizer takes them, where no other file is found
};

// The names of the parameters that only predictors (m) have.
std::set<std::string> predictor_parameters(const ModelConfig& model);

// Side by side in columns if there are several parts; zeros if there is none.
struct ExportTensor {
  FolderTensor tensor;
  DType dtype = DType::float32;  // as written
  std::vector<FolderPart> parts;
  std::vector<const SavedTensor*> saved = {};  // of each part, in the manifest
};

// The contents of an export.
struct ExportPlan {
  Architecture architecture = Architecture::llama;
  ModelConfig model;
  std::vector<ExportTensor> tensors;
  std::vector<NamedBytes> sizes;                // of each of them
  std::vector<std::vector<std::size_t>> files;  // indices into `tensors`
  FolderFacts facts;
  std::vector<std::filesystem::path> companions;  // copied
  std::string tokenizer_json = {};                // made of ranks of tiktoken; otherwise empty
  // tokenizer_config.json of a tokenizer that comes without one; otherwise empty.
  std::string tokenizer_settings = {};
  bool has_tokenizer() const { return has_tokenizer_file || !tokenizer_json.empty(); }
  bool has_tokenizer_file = false;     // among the companions
  bool leaves_out_normalizer = false;  // TokenizerSettings
  std::int64_t bytes() const;          // of all tensors
};

// `manifest` must outlive the plan. Throws Error (request) listing every reason against the architecture, every missing
// or extra parameter of the checkpoint, and every parameter with another shape or dtype.
ExportPlan plan_export(const Manifest& manifest, const ModelConfig& model, const ExportOptions& options);

// Writes the folder `to`, which must not exist. Holds at most one tensor at a time. Throws Error (request) also if the
// checkpoint is damaged or `to` exists, and Error (failure) if `to` cannot be written.
void export_checkpoint(const CheckpointReader& reader, const ExportPlan& plan, const std::filesystem::path& to);

}  // namespace weft
