// config.json of a Hugging Face folder: the architecture and shape of its model. Writing writes every key, because
// classes of transformers have defaults of their own (norm_topk_prob is false, for example). Reading refuses, by name,
// every key with which Weft would compute something else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/model_config.h"
#include "parallel/runtime/dtype.h"
#include "trainer/huggingface/architecture.h"

namespace weft {

// Facts of a folder about its model besides the shape.
struct FolderFacts {
  std::int64_t max_position_embeddings = 0;  // 0: not given
  DType dtype = DType::float32;              // of most weights
  // Each has no, one or several tokens; any of several may end a text.
  std::vector<std::int64_t> bos_token_id, eos_token_id, pad_token_id;
};

std::string model_json(Architecture architecture, const ModelConfig& model, const FolderFacts& facts);
std::string generation_json(const FolderFacts& facts);

struct FolderModel {
  Architecture architecture = Architecture::llama;
  ModelConfig model;
};
// Throws Error (request) naming `name` and listing every key that is missing, of another type, or not supported by
// Weft: biases, scaled rotary embedding, a sliding window of some blocks, quantised weights.
FolderModel parse_model_json(const std::string& text, const std::string& name);
// Parses the facts in config.json besides the shape, for any architecture; leaves dtype unchanged. Throws Error
// (request) naming `name` and every key of another type.
FolderFacts parse_folder_facts(const std::string& text, const std::string& name);

}  // namespace weft
